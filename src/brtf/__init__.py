"""Robust tensor factorization from incomplete data: low-rank structure, outliers, rank and uncertainties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brtf import datasets, metrics
from brtf.data.observations import Observations
from brtf.inference.trace import FitWarning

if TYPE_CHECKING:
    from brtf import baselines, foreground, ranks, video
    from brtf.api.estimator import BRTF, load
    from brtf.api.evaluation import evaluate
    from brtf.api.tabular import AnomalyDetector, Imputer

__version__ = "0.2.0"
__all__ = [
    "BRTF",
    "AnomalyDetector",
    "FitWarning",
    "Imputer",
    "Observations",
    "__version__",
    "baselines",
    "datasets",
    "evaluate",
    "foreground",
    "load",
    "metrics",
    "ranks",
    "video",
]


def __getattr__(name: str) -> Any:
    """Import on first use: names that need scikit-learn or other methods are slow to import."""
    if name in ("BRTF", "load"):
        from brtf.api import estimator

        return getattr(estimator, name)
    if name in ("baselines", "foreground", "ranks", "video"):
        from importlib import import_module

        return import_module(f"brtf.{name}")
    if name in ("AnomalyDetector", "Imputer"):
        from brtf.api import tabular

        return getattr(tabular, name)
    if name == "evaluate":
        from brtf.api.evaluation import evaluate

        return evaluate
    raise AttributeError(f"module 'brtf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
