"""Other programs' fits of the paper's tensors, each with the parameters it needs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from brtf.api.synthetic import Synthetic
from brtf.research.bench.measure import Array

HUBER_THRESHOLD = 2.5
"""Where Huber's loss becomes linear, in standard deviations of the noise."""
SPARSITY = 0.1
"""Weight of the outliers in robust PCA: with a smaller one all data are outliers, with a larger one none."""


@dataclass(frozen=True)
class Peer:
    """Another program: its package, a description, its fit of the low-rank part, and our target relative to it."""

    package: str
    words: str
    low_rank: Callable[[Synthetic], Array]
    limit: float | None = None


def random_start(data: Synthetic) -> list[Array]:
    """Standard normal factors from a stream of their own: generated data with the same seed are not where they are."""
    rng = np.random.default_rng([0, 1])
    return [rng.standard_normal((length, _rank(data))) for length in data.low_rank.shape]


def huber(data: Synthetic) -> Array:
    """CP under Huber's loss by L-BFGS, from a random start."""
    import pyttb
    from pyttb.gcp.fg_setup import setup
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import LBFGSB

    start = random_start(data)
    tensor, mask = pyttb.tensor(_filled(data)), pyttb.tensor(data.mask.astype(float))
    threshold = HUBER_THRESHOLD * math.sqrt(data.noise_variance)
    objective: Any = setup(Objectives.HUBER, additional_parameter=threshold)
    logging.disable(logging.WARNING)  # of every copy that it makes
    try:
        found, _, _ = pyttb.gcp_opt(tensor, _rank(data), objective, LBFGSB(), init=start, mask=mask, printitn=0)
    finally:
        logging.disable(logging.NOTSET)
    return np.asarray(found.full().data)


def parafac(data: Synthetic) -> Array:
    """CP by alternating least squares, which does not model outliers."""
    import tensorly
    from tensorly.decomposition import parafac

    return np.asarray(tensorly.cp_to_tensor(parafac(_filled(data), _rank(data), mask=_mask(data), random_state=0)))


def robust_pca(data: Synthetic) -> Array:
    """Tensor robust PCA: nuclear norms of all unfoldings plus absolute values of the outliers."""
    from tensorly.decomposition import robust_pca

    return np.asarray(robust_pca(_filled(data), mask=_mask(data), reg_E=SPARSITY, verbose=0)[0])


HUBER = Peer("pyttb", "pyttb gcp_opt with Huber loss, given the rank and the noise", huber, 1.0)
PEERS = (
    HUBER,
    Peer("tensorly", "TensorLy parafac, given the rank", parafac),
    Peer("tensorly", "TensorLy robust_pca", robust_pca),
)


def _filled(data: Synthetic) -> Array:
    return np.where(data.mask, data.observed, 0.0)


def _mask(data: Synthetic) -> Array | None:
    return None if data.mask.all() else data.mask


def _rank(data: Synthetic) -> int:
    return int(data.factors[0].shape[1])
