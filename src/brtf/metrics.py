"""Measures that compare an estimate with a known truth: values, factors, masks and intervals."""

from brtf.api.metrics import best_f_measure, coverage, f_measure, fme, fme_per_mode, psnr, rrse

__all__ = ["best_f_measure", "coverage", "f_measure", "fme", "fme_per_mode", "psnr", "rrse"]
