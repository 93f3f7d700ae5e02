"""The contractions: the handful of functions through which the data are touched."""

from brtf.kernels.reference import contract, low_rank_at, variance_at

__all__ = ["contract", "low_rank_at", "variance_at"]
