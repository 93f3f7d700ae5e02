"""How many components: the bound as a function of the largest rank allowed, and the core consistency of factors."""

from brtf.api.ranks import RankCurve, bound_curve, core_consistency

__all__ = ["RankCurve", "bound_curve", "core_consistency"]
