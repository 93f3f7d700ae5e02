"""Where CP methods start, and which of several fits to keep when some entries can be held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from brtf.kernels.dense import compose
from brtf.research.baselines.algebra import Array, leading_basis
from brtf.research.baselines.registry import Mask

HELD_OUT = 0.1
"""Share of the observed entries by which fits are compared."""

Factors = list[Array]
Fit = Callable[[Array, Mask, Factors], Factors]
"""Improve factors on the observed entries: fit(Y, observed, factors)."""
Loss = Callable[[Array], Array]
"""What a residual costs, entry by entry."""


def starting_factors(tensor: Array, rank: int, n_starts: int, rng: np.random.Generator) -> list[Factors]:
    """The starts: the leading singular vectors of the unfoldings if there are enough, then standard normal factors.

    The singular vectors (missing entries zero) count as one start; they need rank ≤ min_n I_n.
    """
    shape = tensor.shape
    starts = []
    if rank <= min(shape) and rank <= min(tensor.size // length for length in shape):
        starts.append([leading_basis(tensor, mode, rank) for mode in range(tensor.ndim)])
    while len(starts) < n_starts:
        starts.append([rng.standard_normal((length, rank)) for length in shape])
    return starts


def hold_out(observed: Mask, rng: np.random.Generator) -> tuple[Mask, Mask]:
    """The observed entries at random in two parts, nine tenths to fit and one tenth to judge by."""
    held_out = np.zeros_like(observed)
    entries = np.flatnonzero(observed)
    held_out.flat[rng.choice(entries, max(1, round(HELD_OUT * entries.size)), replace=False)] = True
    return observed & ~held_out, held_out


def best_start(
    fit: Fit, starts: Sequence[Factors], tensor: Array, observed: Mask, rng: np.random.Generator, loss: Loss = np.square
) -> Factors:
    """Fit all starts to nine tenths of the observed entries, and go on from the best with all of them.

    The best predicts the other tenth with the least loss. The error at the fitted entries is no guide: where the sum of
    squares has no minimum, the closest fit predicts worst.
    """
    if len(starts) == 1:
        return fit(tensor, observed, starts[0])
    fitted, held_out = hold_out(observed, rng)
    return fit(tensor, observed, best_on_held_out(fit, starts, tensor, fitted, held_out, loss)[0])


def best_on_held_out(
    fit: Fit, starts: Sequence[Factors], tensor: Array, fitted: Mask, held_out: Mask, loss: Loss
) -> tuple[Factors, Array]:
    """The fit, of one per start, with the least mean loss on the held-out entries, and its loss on each of them."""
    candidates = [fit(tensor, fitted, start) for start in starts]
    losses = [loss((tensor - compose(candidate))[held_out]) for candidate in candidates]
    best = int(np.argmin([np.mean(each) for each in losses]))
    return candidates[best], losses[best]
