"""Synthetic data with a known truth: the paper's tensor, tensors of adjustable difficulty, a toy video, a toy table."""

from brtf.api.synthetic import Synthetic, paper_synthetic, synthetic
from brtf.api.toy_sales import ToySales, toy_sales
from brtf.api.toy_video import ToyVideo, toy_video

__all__ = ["Synthetic", "ToySales", "ToyVideo", "paper_synthetic", "synthetic", "toy_sales", "toy_video"]
