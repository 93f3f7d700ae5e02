"""Results of a fit: answers with uncertainties, a summary, and a diagnosis of problems."""
