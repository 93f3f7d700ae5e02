"""Synthetic data with a known truth: the paper's tensor, tensors of adjustable difficulty, a toy video, a toy table."""

from brtf.api.datasets import Synthetic, ToyVideo, paper_synthetic, synthetic, toy_video
from brtf.api.toy_sales import ToySales, toy_sales

__all__ = ["Synthetic", "ToySales", "ToyVideo", "paper_synthetic", "synthetic", "toy_sales", "toy_video"]
