"""Synthetic data with a known truth: the paper's tensor, tensors of adjustable difficulty, a toy video."""

from brtf.api.datasets import Synthetic, ToyVideo, paper_synthetic, synthetic, toy_video

__all__ = ["Synthetic", "ToyVideo", "paper_synthetic", "synthetic", "toy_video"]
