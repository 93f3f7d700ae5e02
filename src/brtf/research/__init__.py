"""Methods to compare with, the paper's experiments and benchmarks; not needed for a fit."""
