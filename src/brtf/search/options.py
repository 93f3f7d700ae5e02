"""The settings that matter to a search, as its moves read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.observations import Observations
from brtf.data.positions import Positions
from brtf.inference.entry_posterior import initial_rates
from brtf.model.settings import Settings
from brtf.model.state import OutlierStructure, State
from brtf.search.starts import START_COMPONENTS


@dataclass(frozen=True)
class SearchOptions:
    """The settings that matter to a search.

    Attributes
    ----------
    cap : largest rank of the result
    cap_in_order : the same of one with rows in order
    nonnegative_modes : modes without negative loadings, as asked for
    undecided_modes : modes of which the bound decides whether they have negative loadings and are in order
    ordered_modes : modes in order, as asked for
    cyclic_modes : those of them whose last row is followed by the first
    positions : where the rows of every mode lie
    noise_modes : candidate sets of modes along which the noise may differ
    noise_differs : whether it must differ
    shared_modes : modes along which outliers are shared
    labelled_modes, labels : modes along which given labels of outlier rates vary, and these, 0, 1, …, of every position
        along them in C order
    replaced : whether outliers replace the data
    one_sided : whether outliers must have sides
    kinds_open : whether the bound chooses the kind of outliers
    may_replace : whether it may choose outliers that replace the data
    smooth_modes : modes along which there may be a smooth residual
    smooth_asked : whether there must be one
    many : whether ``max_rank`` allows so many components that one start should have them all
    converged_gain : gain in nats per sweep below which a fit has converged
    """

    cap: int
    cap_in_order: int
    nonnegative_modes: tuple[int, ...]
    undecided_modes: tuple[int, ...]
    ordered_modes: tuple[int, ...]
    cyclic_modes: tuple[int, ...]
    positions: tuple[Positions, ...]
    noise_modes: tuple[tuple[int, ...], ...]
    noise_differs: bool
    shared_modes: tuple[int, ...]
    labelled_modes: tuple[int, ...]
    labels: NDArray[np.int64]
    replaced: bool
    one_sided: bool
    kinds_open: bool
    may_replace: bool
    smooth_modes: tuple[int, ...]
    smooth_asked: bool
    many: bool
    converged_gain: float

    @classmethod
    def of(cls, observations: Observations, settings: Settings, affordable: int) -> SearchOptions:
        """The options of a search of these data with ``affordable`` components at most."""
        limits = (
            settings.rank_limit(observations.shape, observations.n_observed, in_order=in_order)
            for in_order in (False, True)
        )
        cap, cap_in_order = (min(limit, affordable) for limit in limits)
        order, labels = observations.order, observations.labels
        coords = [None] * order if labels is None else labels.coords
        return cls(
            cap=cap,
            cap_in_order=cap_in_order,
            nonnegative_modes=_modes_said_to_be(settings, order, "nonnegative"),
            undecided_modes=settings.undecided_modes(order),
            ordered_modes=_modes_said_to_be(settings, order, "ordered", "cyclic"),
            cyclic_modes=_modes_said_to_be(settings, order, "cyclic"),
            positions=tuple(map(Positions.of, coords, observations.shape)),
            noise_modes=tuple(settings.noise_candidates(observations.shape, observations.n_observed)),
            noise_differs=settings.noise == "per-slice",
            shared_modes=settings.shared_modes(order),
            labelled_modes=settings.labelled_modes,
            labels=_numbered(settings.outlier_labels),
            replaced=settings.outlier_kind == "replacement",
            one_sided=settings.outlier_kind == "one-sided",
            kinds_open=settings.outlier_kind == "auto",
            may_replace=settings.outlier_kind == "auto" and settings.link is None,
            smooth_modes=() if observations.in_chunks else settings.smooth_modes(observations.shape),
            smooth_asked=settings.smooth_residual not in (None, "auto"),
            many=settings.max_rank is not None and cap > START_COMPONENTS,
            converged_gain=settings.tol * observations.n_observed,
        )

    @property
    def structured(self) -> bool:
        """Whether outliers must not be independent, additive and of one rate."""
        return bool(self.shared_modes or self.labelled_modes or self.replaced)

    def structure(self, rate: float) -> OutlierStructure | None:
        """What is asked for of how outliers hang together, apart from a law of replaced values: None if nothing is.

        Rates that are to differ are equal at first.
        """
        if self.labelled_modes:
            n_rates = int(self.labels.max()) + 1
            return OutlierStructure(rates=initial_rates(self.labelled_modes, n_rates, rate, self.labels))
        return OutlierStructure(self.shared_modes) if self.shared_modes else None

    def limit(self, state: State) -> int:
        """The largest rank of the result, if it has the row priors of this state."""
        return self.cap_in_order if state.is_ordered else self.cap


def _numbered(labels: NDArray[Any] | None) -> NDArray[np.int64]:
    """Labels as numbers 0, 1, …, in C order; none if there are none."""
    distinct = np.unique([] if labels is None else labels, return_inverse=True)[1]
    return distinct.reshape(-1).astype(np.int64)


def _modes_said_to_be(settings: Settings, order: int, *any_of: str) -> tuple[int, ...]:
    return tuple(mode for mode, words in settings.said_of_modes(order).items() if set(any_of) & set(words))
