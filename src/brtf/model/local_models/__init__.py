"""Local models: the posterior of one entry, that is its responsibility, its weight and its share in the bound.

One file per model. To add one, write a frozen dataclass that implements :class:`LocalModel` and decorate it with
:func:`register`; nothing else changes.
"""

from brtf.model.local_models.flat_slab import FlatSlab
from brtf.model.local_models.gaussian_slab import GaussianSlab
from brtf.model.local_models.local_model import (
    LOCAL_MODELS,
    MINORITY,
    OUTLIER_SHARES,
    PROBABILITY_RANGE,
    Branch,
    LocalModel,
    LocalPosterior,
    rate_log_prior,
    register,
    rivals,
)
from brtf.model.local_models.no_outliers import NoOutliers
from brtf.model.local_models.slab_model import WIDEST_SLAB, SlabModel, StudentNoise
from brtf.model.local_models.student_slab import StudentSlab

__all__ = [
    "LOCAL_MODELS",
    "MINORITY",
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
    "rate_log_prior",
    "register",
    "rivals",
]
