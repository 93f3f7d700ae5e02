"""The model in types: settings, priors, rows, local models of an entry, links, and what they predict."""
