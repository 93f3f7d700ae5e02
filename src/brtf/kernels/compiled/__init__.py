"""The kernels with Numba where NumPy needs several passes; a file for each file of :mod:`brtf.kernels.reference`.

Products of dense matrices are left to BLAS, on tiles that fit a core's cache. Numba does the rest: entries given by a
mask or by coordinates, local posteriors, histograms, and small Cholesky solves. All loops release the GIL, so that
several threads can process blocks.
"""

from brtf.kernels.compiled.chains import chain_evidence, smooth_chain, smooth_wide_chain
from brtf.kernels.compiled.contractions import contract, contract_one, low_rank_at, positions, variance_at
from brtf.kernels.compiled.fibres import fibre_evidence, smooth_fibres
from brtf.kernels.compiled.listed_block import listed
from brtf.kernels.compiled.local import (
    completed,
    count_deviations,
    evidence,
    local_posteriors,
    solve_completed,
)
from brtf.kernels.compiled.rows import solve_rows
from brtf.kernels.compiled.scoring import scores
from brtf.kernels.compiled.truncated import solve_truncated

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
