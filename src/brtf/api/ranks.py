"""How many components: the bound as a function of the largest rank allowed, and the core consistency of factors."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brtf import kernels
from brtf.api.evaluation import draw_hidden, text_table
from brtf.data.observations import observe
from brtf.inference.trace import FitWarning

__all__ = ["RankCurve", "bound_curve", "core_consistency"]

Array = NDArray[np.float64]


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
    balanced = _balanced([np.asarray(factor, dtype=np.float64) for factor in factors], observations.shape)
    n_components = balanced[0].shape[1]
    inverses = [np.asarray(np.linalg.pinv(factor), dtype=np.float64) for factor in balanced]
    # One column for every combination of components in the modes after the first, in C order.
    combinations = np.indices((n_components,) * (observations.order - 1)).reshape(observations.order - 1, -1)
    columns = [inverse.T[:, chosen] for inverse, chosen in zip(inverses[1:], combinations, strict=True)]
    excess = np.zeros((n_components, combinations.shape[1]))
    for block in observations.blocks():
        residual = block.values - kernels.low_rank_at(block, balanced)
        rows = slice(observations.shape[0]) if block.coords is not None else block.rows
        contracted = np.zeros((balanced[0][rows].shape[0], combinations.shape[1]))
        kernels.contract(block, residual, [balanced[0], *columns], 0, contracted)
        excess += inverses[0][:, rows] @ contracted
    return float(100.0 * (1.0 - np.sum(excess**2) / n_components))


def _balanced(factors: list[Array], shape: tuple[int, ...]) -> list[Array]:
    """Rescale every component so that its columns have the same norm in all modes."""
    shapes = [factor.shape for factor in factors]
    n_components = shapes[0][1] if shapes and len(shapes[0]) == 2 else 0
    if n_components == 0 or shapes != [(length, n_components) for length in shape]:
        raise ValueError(
            f"factors have shapes {shapes}, but Y has shape {shape}. Pass one matrix per mode, with a row for every "
            "position and the same number of columns, at least one."
        )
    norms = np.stack([np.linalg.norm(factor, axis=0) for factor in factors])
    if not (np.isfinite(norms).all() and norms.all()):
        raise ValueError("factors have a column that is zero or not finite. Leave that component out in all modes.")
    size = np.exp(np.mean(np.log(norms), axis=0))
    return [factor / norm * size for factor, norm in zip(factors, norms, strict=True)]
