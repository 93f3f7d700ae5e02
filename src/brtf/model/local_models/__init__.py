"""Local models: the posterior of one entry. Is it an outlier, how much does it count, what does it add to the bound.

One file is one model. Another is added by a frozen dataclass that implements :class:`LocalModel` and the decorator
:func:`register`; nothing else has to know of it.
"""

from brtf.model.local_models.flat_slab import FlatSlab
from brtf.model.local_models.gaussian_slab import GaussianSlab
from brtf.model.local_models.local_model import (
    LOCAL_MODELS,
    OUTLIER_SHARES,
    PROBABILITY_RANGE,
    Branch,
    LocalModel,
    LocalPosterior,
    register,
    rivals,
)
from brtf.model.local_models.no_outliers import NoOutliers
from brtf.model.local_models.slab_model import WIDEST_SLAB, SlabModel, StudentNoise
from brtf.model.local_models.student_slab import StudentSlab

__all__ = [
    "LOCAL_MODELS",
    "OUTLIER_SHARES",
    "PROBABILITY_RANGE",
    "WIDEST_SLAB",
    "Branch",
    "FlatSlab",
    "GaussianSlab",
    "LocalModel",
    "LocalPosterior",
    "NoOutliers",
    "SlabModel",
    "StudentNoise",
    "StudentSlab",
    "register",
    "rivals",
]
