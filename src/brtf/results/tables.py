"""A finished fit as tables, datasets and factors of other packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.exports import Table, as_frame, long_table, to_cp_tensor, to_dataset, with_gaps
from brtf.data.extras import require
from brtf.data.memory import check_memory
from brtf.inference.trace import Record
from brtf.results.result import Result
from brtf.results.signal import in_squared_units


@dataclass(frozen=True, eq=False)
class Outliers:
    """Entries with an outlier probability above ½, the largest outliers first: coordinates (N, K) and vectors (K,)."""

    coords: NDArray[np.intp]
    observed: NDArray[np.floating[Any]]
    low_rank: Array
    outlier: Array
    probability: Array


def largest_outliers(result: Result, limit: int | None = None) -> Outliers:
    """The entries whose outlier probability exceeds one half, by the size of the outlier; at most ``limit``."""
    probability, outliers = result.outlier_probability_at_entries(), result.outliers_at_entries()
    chosen = np.flatnonzero(probability > 0.5)
    chosen = chosen[np.argsort(-np.abs(outliers[chosen]), kind="stable")][:limit]
    coords = result.observations.coords_at(chosen)
    low_rank = result.low_rank(coords) if chosen.size else np.empty(0)
    observed = result.observations.values.ravel()[chosen]
    return Outliers(coords, observed, low_rank, outliers[chosen], probability[chosen])


def outlier_table(result: Result, *, first_position: int = 0) -> Table:
    """The entries with an outlier probability above ½, the largest outliers first, as columns by name.

    Labels or positions (from ``first_position``) of the modes, then ``observed``, ``low_rank``, ``outlier`` and
    ``probability``.
    """
    found = largest_outliers(result)
    numbers = [(name, getattr(found, name)) for name in ("observed", "low_rank", "outlier", "probability")]
    return long_table(result.observations, found.coords, numbers, first_position=first_position)


def imputed_table(result: Result) -> Table:
    """Every entry of the tensor, observed or imputed, as columns by name.

    Labels or positions of the modes, then the value by its own name (``value`` without one), ``std`` of the
    low-rank part, and ``missing``: whether no value was given and the low-rank part is used.
    """
    observations = result.observations
    n_bytes = 8 * (observations.order + 3) * observations.n_entries
    check_memory(n_bytes, f"a table of all entries of shape {observations.shape}", "ask predict() for some")
    missing = np.isnan(result._given())
    numbers = [
        (observations.name or "value", result.impute().ravel()),
        ("std", result.std().ravel()),
        ("missing", missing.ravel()),
    ]
    return long_table(observations, np.indices(missing.shape).reshape(missing.ndim, -1), numbers)


def frame_of(result: Result, of: Literal["outliers", "imputed"] = "outliers") -> Any:
    """A table with the index columns of the data: :func:`outlier_table` or :func:`imputed_table`."""
    if not isinstance(of, str) or of not in ("outliers", "imputed"):
        raise ValueError(f"of must be 'outliers' or 'imputed', got {of!r}.")
    require("pandas", extra="label", purpose="to_frame()")
    return as_frame(outlier_table(result) if of == "outliers" else imputed_table(result), result.observations)


def dataset_of(result: Result) -> Any:
    """The results as an xarray.Dataset with the labels of the data; see :meth:`brtf.BRTF.to_xarray`."""
    observations = result.observations
    n_bytes = 5 * 8 * observations.n_entries
    check_memory(n_bytes, f"a dataset of shape {observations.shape}", "use to_frame(), or predict() with coords=")
    tensors = {
        "observed": result._given(),
        "low_rank": result.low_rank(),
        "std": result.std(),
        "outliers": with_gaps(observations, result.outliers_at_entries()),
        "outlier_probability": with_gaps(observations, result.outlier_probability_at_entries()),
    }
    attrs = {
        "rank": result.rank,
        "bound": result.bound,
        "inference": result.settings.inference,
        "link": result.link.name or "none",
        "stop_reason": result.stop_reason.value,
        "brtf_version": result.version,
    }
    noise = {"noise_variance": (result.noise_modes, result.noise_variances)}
    factors = {
        group: mean.reshape(*(observations.shape[mode] for mode in group), -1)
        for group, mean in result.mode_factors().items()
    }
    return to_dataset(observations, tensors, factors, noise, attrs)


def cp_tensor_of(result: Result) -> Any:
    """The posterior means of the factors as a tensorly.cp_tensor.CPTensor; see :meth:`brtf.BRTF.to_tensorly`."""
    return to_cp_tensor(list(result.mode_factors().values()))


def as_structured(trace: tuple[Record, ...], bound_shift: float, scale: float) -> NDArray[Any]:
    """The trace as a structured array, in the user's units."""
    longest = max([1, *(len(str(record.event)) for record in trace)])
    noise = in_squared_units(np.array([record.noise_variance for record in trace]), scale)
    rows = [(r.sweep, r.bound + bound_shift, r.rank, var, str(r.event)) for r, var in zip(trace, noise, strict=True)]
    dtype = [
        ("sweep", "i8"),
        ("bound", "f8"),
        ("rank", "i8"),
        ("noise_variance", "f8"),
        ("event", f"U{longest}"),
    ]
    return np.array(rows, dtype=dtype)
