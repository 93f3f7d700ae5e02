"""Variational inference for one model: statistics, updates, sweeps, the bound, and the inference of the paper."""
