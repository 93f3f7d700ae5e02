"""The model as types: settings, priors, factor rows, local models of an entry, links and the posterior predictive."""
