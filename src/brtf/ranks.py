"""How many components: the bound as a function of the largest rank allowed, and the core consistency of factors."""

from brtf.api.ranks import RankCurve, SplitHalf, bound_curve, core_consistency, split_half

__all__ = ["RankCurve", "SplitHalf", "bound_curve", "core_consistency", "split_half"]
