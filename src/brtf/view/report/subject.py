"""What a report page is about: the result, what the user asked for, and what several parts need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.observations import Observations
from brtf.results.result import Result
from brtf.results.split_half import SplitHalf
from brtf.view.report.blocks import Sides
from brtf.view.report.layout import Layout
from brtf.view.view_data import Axis, axis_of, by_strength

NOT_IN_FILE = "A checkpoint, or the result of a fit to data in chunks, does not contain the entries."
MOST_COMPONENTS = 12
"""Number of components whose factors are drawn, the strongest first."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A result and how to show it.

    Attributes
    ----------
    result : the fit
    layout : which modes make up a picture
    names : of the components, in the order of the columns of the factors
    held_out : entries that the fit has not seen, if there are any
    given : whether the user gave these, or other data
    most_components : number of components whose factors are drawn
    split_half : the components compared with those of halves of the data, if that was asked for
    sides : of the pictures, filled in by the parts
    """

    result: Result
    layout: Layout
    names: Sequence[str]
    held_out: Observations | None = None
    given: bool = False
    most_components: int = MOST_COMPONENTS
    split_half: SplitHalf | None = None
    sides: Sides = field(default_factory=Sides)

    @property
    def has_entries(self) -> bool:
        return not self.result.observations.in_chunks

    @cached_property
    def axes(self) -> list[Axis]:
        """The axis of every mode."""
        observations = self.result.observations
        return [axis_of(observations, mode) for mode in range(observations.order)]

    def fibre_name(self, along: int, positions: Sequence[int]) -> str:
        """The labels of a fibre along a mode, given its positions in all modes."""
        places = enumerate(zip(self.axes, positions, strict=True))
        return ", ".join(f"{axis.name} {axis.text(int(at))}" for mode, (axis, at) in places if mode != along)

    @cached_property
    def probability(self) -> Array:
        """Outlier probability of the observed entries, (M,)."""
        return self.result.outlier_probability_at_entries()

    @cached_property
    def shown(self) -> NDArray[np.intp]:
        """The components that are drawn, the strongest first."""
        return by_strength(self.result)[: self.most_components]
