"""Memory that a fit takes, and the rank that it allows."""

from __future__ import annotations

from dataclasses import replace

from brtf.data.memory import available_bytes
from brtf.data.observations import Observations
from brtf.model.settings import Settings
from brtf.search.moves.form import LARGEST_COLLAPSED_WORK

MATRICES_PER_ROW, VECTORS_PER_ROW, ENTRY_NUMBERS = 8, 20, 8
"""Memory estimate: R×R matrices and R-vectors held per row by the states of a search and its acceleration, and numbers
held per entry by the paper's inference."""


def fit_bytes(observations: Observations, settings: Settings, rank: int) -> int:
    """Memory of a fit besides the data: a few states with R×R matrices per row, and per-entry posteriors.

    Only the paper's inference has per-entry posteriors. For complete data, rows share one matrix in the paper's
    inference, and also where weighted Grams are too expensive.
    """
    paper, n_observed = settings.inference == "paper", observations.n_observed
    alike = paper or (settings.noise != "per-slice" and n_observed * rank**2 / 2 > LARGEST_COLLAPSED_WORK)
    n_matrices = 0 if alike and observations.layout == "complete" else MATRICES_PER_ROW
    per_row = n_matrices * rank**2 + (0 if paper else VECTORS_PER_ROW * rank)
    return 8 * (sum(observations.shape) * per_row + (ENTRY_NUMBERS * n_observed if paper else 0))


def affordable_rank(observations: Observations, settings: Settings) -> int:
    """The largest rank for which a fit fits in memory, but at least the given cap, and at least one."""
    given = 1 if settings.max_rank is None else int(settings.max_rank)
    free, in_order = replace(settings, max_rank=None), settings.modes is not None
    most = free.rank_limit(observations.shape, observations.n_observed, in_order=in_order)
    available = available_bytes()
    low, high = min(given, most), most + 1  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit_bytes(observations, settings, middle) <= available else (low, middle)
    return low
