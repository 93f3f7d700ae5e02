"""How many components: the bound as a function of the largest rank allowed, and the core consistency of factors."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from brtf import kernels
from brtf.api.evaluation import draw_hidden, text_table
from brtf.data.observe import observe
from brtf.inference.trace import FitWarning
from brtf.model.settings import Settings
from brtf.results.core_consistency import balanced, consistency
from brtf.results.result import Result
from brtf.results.split_half import SplitHalf, compared

__all__ = ["RankCurve", "SplitHalf", "bound_curve", "core_consistency", "split_half"]


@dataclass(frozen=True, eq=False)
class RankCurve:
    """Results of :func:`bound_curve`.

    Attributes
    ----------
    rows : list of dict
        One for every ``max_rank``, in increasing order: ``max_rank``, ``rank`` (found), ``bound`` (nats),
        ``log_density`` (mean log predictive density of held-out entries, nats per entry; NaN without any),
        ``converged``, ``seconds``.
    share : share of the curve's rise by which the elbow may fall short of the best bound
    """

    rows: list[dict[str, Any]]
    share: float

    @property
    def elbow(self) -> int:
        """The smallest ``max_rank`` whose bound falls short of the best by no more than ``share`` of the curve's rise.

        bound ≥ best − max(share · (best − worst), 1 nat): the bound may be of either sign, so a share of the bound
        itself would be meaningless, and less than a nat is not evidence. The rise is visible only if the ranks begin
        below the elbow.
        """
        bounds = np.array([row["bound"] for row in self.rows])
        slack = max(self.share * (bounds.max() - bounds.min()), 1.0)
        return int(self.rows[int(np.argmax(bounds >= bounds.max() - slack))]["max_rank"])

    def table(self) -> str:
        """The curve as text, a line per rank; the elbow is marked."""
        names = ("max_rank", "rank", "bound", "log_density", "seconds")
        elbow = self.elbow
        lines = (
            [*(f"{row[name]:.6g}" for name in names), "elbow" if row["max_rank"] == elbow else ""] for row in self.rows
        )
        return text_table([[*names, ""], *lines])


def bound_curve(
    Y: Any,
    ranks: Iterable[int],
    mask: Any = None,
    *,
    hold_out: float = 0.0,
    share: float = 0.01,
    seed: int = 0,
    **options: Any,
) -> RankCurve:
    """Fit with each of the ranks as ``max_rank``, and show where the bound stops rising.

    A fit may find fewer components than allowed. If the model is correct, the curve is flat from the true rank on; on
    real data it often keeps rising slowly, and the elbow is where the slow rise begins: see :attr:`RankCurve.elbow`.

    Parameters
    ----------
    Y, mask
        The data, as for :meth:`BRTF.fit`.
    ranks : iterable of int
        The upper limits, at least 1 each.
    hold_out : float
        Share of the observed entries to hold out, chosen at random and the same for all ranks.
    share : float
        Share of the curve's rise, between 0 and 1, by which the elbow may fall short of the best bound.
    seed : int
        Seed of the held-out entries and, unless ``random_state`` is among the options, of the fits.
    **options
        Options of :class:`BRTF` other than ``max_rank``.

    Returns
    -------
    RankCurve
    """
    from brtf.api.estimator import BRTF

    limits = sorted(set(ranks))
    if not limits:
        raise ValueError("ranks is empty. Give at least one, such as range(1, 7).")
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1, got {share!r}.")
    observations = observe(Y, mask)
    held_out = None
    if hold_out != 0:
        hidden = draw_hidden(observations, hold_out, np.random.default_rng(seed))
        observations, held_out = observations.select(~hidden), observations.select(hidden)
    rows = []
    for limit in limits:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="max_rank=", category=FitWarning)  # what the curve is to show
            fitted = BRTF(max_rank=limit, **{"random_state": seed, **options}).fit(observations)
        rows.append(
            {
                "max_rank": limit,
                "rank": fitted.rank_,
                "bound": fitted.bound_,
                "log_density": np.nan if held_out is None else fitted.score(held_out),
                "converged": fitted.converged_,
                "seconds": fitted.result_.seconds,
            }
        )
    return RankCurve(rows, share)


def core_consistency(factors: Sequence[ArrayLike], Y: Any, mask: Any = None) -> float:
    """Core consistency in percent: how well the data support components that do not interact; 100 is best.

    Given the factors, let G be the least-squares Tucker core, which holds all R^N interactions of columns. If the
    components do not interact it is T, one where all indices are equal and zero elsewhere. The consistency is

        100 (1 − Σ (g − t)² / R)    (Bro & Kiers, Journal of Chemometrics 17, 2003).

    It is near 100 for as many components as the data support and drops, often far below zero, with the first one too
    many. Missing entries are filled in by the model. G − T is then the residual at the observed entries, contracted
    with the pseudoinverses of the factors; if there are several least-squares cores, this is the one closest to T. The
    columns of a component are first scaled to the same norm in all modes, because G depends on it. For a matrix the
    value is meaningless, since any rotation of the components fits equally well.

    Parameters
    ----------
    factors : sequence of array_like
        One matrix (I_n, R) per mode, such as ``model.factors_``.
    Y, mask
        The data to which the factors were fitted, as for :meth:`BRTF.fit`. Sparse data stay sparse.

    Returns
    -------
    float
        At most 100.
    """
    observations = observe(Y, mask)
    matrices = balanced([np.asarray(factor, dtype=np.float64) for factor in factors], observations.shape)
    return consistency(
        observations, matrices, lambda block: np.asarray(block.values - kernels.low_rank_at(block, matrices))
    )


def split_half(fitted: Any, *, mode: int | None = None, seed: int = 0) -> SplitHalf:
    """Fit two random halves of the data on their own, and compare their components with each other.

    Components that both halves show do not depend on which data were seen. The halves are positions of one mode; the
    factors of the other modes are compared. Link, arrangement and options are those of the fit, and the rank of a half
    is at most that of the fit.

    Parameters
    ----------
    fitted : BRTF or Result
        A finished fit with its entries, of a tensor that is read with three or more modes.
    mode : int or None
        The mode to split; None: the longest. It needs four or more positions.
    seed : int
        Seed of the halves and of the fits.

    Returns
    -------
    SplitHalf

    Examples
    --------
    >>> import brtf
    >>> data = brtf.datasets.synthetic((30, 20, 10), 2, seed=0)
    >>> model = brtf.BRTF(random_state=0).fit(data.observed)
    >>> bool(brtf.ranks.split_half(model).stable.all())
    True
    """
    from brtf.api.estimator import BRTF

    result: Result = getattr(fitted, "result_", fitted)
    observations, arrangement = result.observations, result.arrangement
    if observations.in_chunks:
        raise ValueError("split_half needs the entries, which this result does not contain: fit data in memory.")
    if len(result.state.factors) < 3 or result.rank == 0:
        got = f"rank {result.rank}" if result.rank == 0 else f"{len(result.state.factors)} modes"
        raise ValueError(
            f"split_half needs a fit with components and three or more modes, got {got}: the components of a matrix "
            "can be rotated, so those of its halves need not agree."
        )
    allowed = [k for k, length in enumerate(observations.shape) if length >= 4 and k not in arrangement.periods]
    split = max(allowed, key=lambda k: observations.shape[k], default=None) if mode is None else mode
    if isinstance(split, bool) or split not in allowed:
        raise ValueError(
            f"mode must be one of {', '.join(map(str, allowed)) or 'none'}, those with four or more positions that are "
            f"not folded, got {mode!r} for shape {observations.shape}."
        )
    drawn = np.random.default_rng(seed).permutation(observations.shape[split])
    positions = tuple(np.sort(half) for half in np.array_split(drawn, 2))
    options = {name: getattr(result.settings, name) for name in Settings.__dataclass_fields__}
    options |= {"max_rank": result.rank, "link": result.link.name, "calibrate": None, "scatter": None}
    options["arrangement"] = arrangement.periods or arrangement.groups
    if not isinstance(options["init"], str):
        options["init"] = "spectral"  # factors of the whole tensor
    halves = []
    for half in positions:
        everywhere = [half if k == split else np.arange(length) for k, length in enumerate(observations.shape)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="max_rank=", category=FitWarning)  # the rank is to be the same
            model = BRTF(**options, random_state=seed).fit(observations.at_positions(everywhere))
        halves.append(model.result_)
    return compared(result, (halves[0], halves[1]), split, positions)
