"""The laboratory: methods to compare with, the experiments of the paper, benchmarks. No fit needs it."""
