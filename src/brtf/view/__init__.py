"""What is looked at: the summary, plots and the report."""
