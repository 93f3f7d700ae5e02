"""Modes without negative loadings.

Proposes them for all modes together whose loadings nearly all have one sign, then for each alone; and, where a mode
became one though nobody asked for it, loadings of either sign again. Screened without a pass: half of the prior's mass
gains ln 2 per loading, cutting off what lies below zero loses −ln Φ(mean/scale), and a product of independent loadings
loses ½ ln(Π_r P_rr / |P|) per row. Costs two sweeps with the noise held and up to 60 free ones. Worth trying after
every change of the components.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from brtf.data.arrays import Array
from brtf.inference.judge import WORTH
from brtf.inference.trace import Kind
from brtf.kernels.packed import unpack_symmetric
from brtf.model.distributions import RowGaussians
from brtf.model.row_priors import IndependentRows, NonNegative, ZeroMean
from brtf.model.state import State
from brtf.search.components import without_negative
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole, settled


def promised_without_negative(rows: RowGaussians) -> float:
    """C31: nats that rows of positive orientation gain if their loadings are never negative."""
    whole = np.linalg.inv(rows.cov)
    diagonal = np.einsum("irr->ir", whole)
    n_sharing = rows.n_rows // len(diagonal)
    lost = 0.5 * n_sharing * float(np.sum(np.log(diagonal)) + rows.log_det_cov.sum())
    kept = log_ndtr(rows.mean * np.sqrt(diagonal))
    return rows.mean.size * math.log(2.0) + float(kept.sum()) - lost


def promised_by_either_sign(prior: NonNegative) -> float:
    """Nats that rows without negative loadings gain if these may have either sign."""
    rank = prior.location.shape[1]
    whole = unpack_symmetric(prior.precision, rank)
    diagonal = np.einsum("irr->ir", whole)
    gained = 0.5 * float(np.sum(np.log(diagonal)) - np.linalg.slogdet(whole)[1].sum())
    return gained - prior.location.size * math.log(2.0) - float(log_ndtr(prior.location * np.sqrt(diagonal)).sum())


def candidates(state: State, modes: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the modes, of independent rows, for which the screen promises a nat or more, the best first."""
    independent = [mode for mode in modes if isinstance(state.row_priors[mode], IndependentRows)]
    gains = {mode: promised_without_negative(_upright(state.factors[mode])) for mode in independent}
    return tuple(mode for mode in sorted(gains, key=lambda mode: -gains[mode]) if gains[mode] > WORTH)


def _upright(rows: RowGaussians) -> RowGaussians:
    """The rows with the signs that make their components most positive."""
    above, below = (np.sum(np.maximum(side * rows.mean, 0.0) ** 2, axis=0) for side in (1.0, -1.0))
    sign: Array = np.where(above < below, -1.0, 1.0)
    return rows.scaled(sign)


class WithoutNegative(Move):
    """Loadings that are never negative, or of either sign again. ``memory`` holds the remaining sets of modes."""

    name = "non-negative"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        state, undecided = progress.point.state, progress.options.undecided_modes
        if not memory:
            promising = candidates(state, undecided) if state.rank else ()
            sets = (promising, *((mode,) for mode in promising if len(promising) > 1)) if promising else ()
            back = tuple(
                (mode,)
                for mode, prior in enumerate(state.row_priors)
                if isinstance(prior, NonNegative) and mode in undecided and promised_by_either_sign(prior) > WORTH
            )
            memory = ((*sets, *back),)
        (sets,) = memory
        if not sets:
            return None, memory
        modes = sets[0]
        told = ", ".join(f"mode {mode}" for mode in modes)
        if state.row_priors[modes[0]].signed:
            state = without_negative(state, modes)
            kind, words = Kind.NON_NEGATIVE, f"{told} without negative loadings"
        else:
            state = state.with_factor(modes[0], state.factors[modes[0]], ZeroMean())
            kind, words = Kind.SIGNED, f"{told} of either sign"
        trial = progress.trial(kind, words, state, settled(2, 60), then=Sweeps(progress.roughly, 60))
        return trial, (sets[1:],)

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        return ((),) if accepted else memory

    def could_remember(self, memory: Memory, rank: int) -> bool:
        sets = memory[0] if len(memory) == 1 else None
        return isinstance(sets, tuple) and all(are_whole(modes) and len(modes) > 0 for modes in sets)
