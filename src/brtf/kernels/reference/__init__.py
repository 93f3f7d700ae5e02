"""The kernels in plain NumPy: the definition that the compiled ones must match."""

from brtf.kernels.reference.chains import chain_evidence, smooth_chain, smooth_wide_chain
from brtf.kernels.reference.contractions import contract, contract_one, listed, low_rank_at, positions, variance_at
from brtf.kernels.reference.fibres import fibre_evidence, smooth_fibres
from brtf.kernels.reference.local import (
    completed,
    count_deviations,
    evidence,
    local_posteriors,
    solve_completed,
)
from brtf.kernels.reference.rows import solve_rows
from brtf.kernels.reference.scoring import scores
from brtf.kernels.reference.truncated import solve_truncated

__all__ = [
    "chain_evidence",
    "completed",
    "contract",
    "contract_one",
    "count_deviations",
    "evidence",
    "fibre_evidence",
    "listed",
    "local_posteriors",
    "low_rank_at",
    "positions",
    "scores",
    "smooth_chain",
    "smooth_fibres",
    "smooth_wide_chain",
    "solve_completed",
    "solve_rows",
    "solve_truncated",
    "variance_at",
]
