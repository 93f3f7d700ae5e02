"""What the generators of lookalike data share: the record of a set, and the parts from which sets are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Lookalike:
    """Generated data and what is known of them.

    Attributes
    ----------
    observed : what a fit may see, NaN elsewhere
    values : what was or would be measured; NaN where there is nothing to measure, such as temperatures on land
    mean : expected values without noise
    time : the mode of time, or of what is most like it
    period : positions after which time repeats itself, at least roughly
    hits : where something was added to the values or replaced them, if that is to be found
    amounts : positions × chemicals, if the components of the first mode are to be these
    """

    observed: Array
    values: Array
    mean: Array
    time: int
    period: int = 1
    hits: NDArray[np.bool_] | None = None
    amounts: Array | None = None

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """Entries to predict: those that were not hit, as nobody can know the others."""
        hidden = np.isfinite(self.values) & ~np.isfinite(self.observed)
        return hidden if self.hits is None else hidden & ~self.hits


def remembering(shape: tuple[int, ...], memory: float, rng: np.random.Generator) -> Array:
    """Courses of unit variance along the first mode, each value remembering the one before."""
    course = rng.standard_normal(shape)
    for step in range(1, len(course)):
        course[step] = memory * course[step - 1] + np.sqrt(1 - memory**2) * course[step]
    return course


def overdispersed(mean: Array, share: float, rng: np.random.Generator) -> Array:
    """Counts of this mean and of the variance mean + share · mean²."""
    return rng.poisson(mean * rng.gamma(1 / share, share, mean.shape)).astype(float)


def smooth_field(rng: np.random.Generator, shape: tuple[int, ...], widths: tuple[float, ...]) -> Array:
    """A smooth random field of unit variance."""
    field = gaussian_filter(rng.standard_normal(shape), widths, mode="reflect")
    return np.asarray(field / field.std())


def hide(values: Array, share: float, rng: np.random.Generator, fibres: tuple[int, ...] = ()) -> Array:
    """The values without a random share of them; of modes ``fibres`` all positions are hidden together."""
    shape = tuple(1 if mode in fibres else length for mode, length in enumerate(values.shape))
    return np.where(rng.random(shape) < share, np.nan, values)


def runs(shape: tuple[int, int], share: float, mean_length: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Runs along the first mode that cover about this share of a table."""
    gone = np.zeros(shape, dtype=bool)
    while gone.mean() < share:
        column, first = rng.integers(shape[1]), rng.integers(shape[0])
        gone[first : first + int(rng.exponential(mean_length)) + 1, column] = True
    return gone
