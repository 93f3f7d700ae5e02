"""Time to answer: whole fits that are told nothing, and how many of their sweeps the search spends on its moves.

Each fit is timed against what else one could run on the same data. Its rank and its error stand next to the ratio:
speed must not be bought with accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Generic, TypeVar

import numpy as np

from brtf.api.estimator import BRTF
from brtf.api.metrics import rrse
from brtf.api.synthetic import Synthetic, paper_synthetic, synthetic
from brtf.data.observations import Observations
from brtf.inference.trace import Kind
from brtf.research.baselines import recover
from brtf.research.bench.fits import quiet_fit
from brtf.research.bench.measure import Array, Effort, Measurement, fastest
from brtf.research.bench.peers import HUBER, Peer
from brtf.research.bench.sweeps import times

Answer = TypeVar("Answer")
LIMIT_OF_MOVES = 2.0
"""Moves may take this many times the sweeps that the final state needs from a start at the truth."""


@dataclass(frozen=True, eq=False)
class Question:
    """Data with a known truth, what a fit of them is compared with, and the ratio asked for.

    Attributes
    ----------
    words : the data in words
    observed : what is fitted
    error : relative error of a fitted model
    rival : what the fit is compared with, in words
    run_rival : runs it; returns its relative error, or None where it makes no estimate
    limit : the largest ratio that meets the target
    package : what the rival needs
    """

    words: str
    observed: Array | Observations
    error: Callable[[BRTF], float]
    rival: str
    run_rival: Callable[[], float | None]
    limit: float | None
    package: str = "brtf"


class Kept(Generic[Answer]):
    """A run whose last answer is kept."""

    last: Answer

    def __init__(self, run: Callable[[], Answer]) -> None:
        self.run = run

    def __call__(self) -> None:
        self.last = self.run()


def answers(effort: Effort) -> Iterator[Measurement]:
    """Target 10: whole fits with default settings against methods given what they need; one timed run of each."""
    for make in QUESTIONS:
        question = make(quick=effort.quick)
        if find_spec(question.package) is None:
            reason = f'skipped, {question.package} is not installed: pip install "brtf[baselines]"'
            yield Measurement(10, question.words, None, f"{question.rival}: {reason}", question.limit)
            continue
        fits = Kept(partial(quiet_fit, question.observed))
        rivals = Kept(question.run_rival)
        seconds = fastest({"fit": fits, "rival": rivals}, 1)
        model = fits.last
        compared = " and ".join(f"{one:.4f}" for one in (question.error(model), rivals.last) if one is not None)
        note = (
            f"{seconds['fit']:.2f} and {seconds['rival']:.2f} s, rank {model.rank_}, errors {compared}, "
            f"{model.n_sweeps_} sweeps"
        )
        ratio = seconds["fit"] / seconds["rival"]
        yield Measurement(10, question.words, ratio, question.rival, question.limit, note=note)


def _against(words: str, data: Synthetic, peer: Peer, limit: float | None) -> Question:
    """A question with a rival that estimates the low-rank part."""

    def error(low_rank: Array) -> float:
        return rrse(low_rank, data.low_rank)

    words = f"fit of {times(data.low_rank.shape)}, rank {data.factors[0].shape[1]}, {words}, told nothing"
    return Question(
        words,
        data.observed,
        lambda model: error(model.low_rank()),
        peer.words,
        lambda: error(peer.low_rank(data)),
        limit,
        peer.package,
    )


PURSUIT = Peer("brtf", "principal component pursuit", lambda data: recover("pcp", data.observed.astype(float)).low_rank)


def _cube(side: int, small: int, limit: float, *, quick: bool) -> Question:
    shape, rank = ((small,) * 3, 4) if quick else ((side,) * 3, 20)
    return _against("5 % outliers", synthetic(shape, rank, outliers=0.05, seed=0), HUBER, limit)


def _many_components(outliers: float, *, quick: bool) -> Question:
    data = paper_synthetic(rank=6 if quick else 50, outliers=outliers, noise="20dB", seed=1)
    return _against(f"{100 * outliers:g} % outliers", data, HUBER, 4.0)


def _incomplete(*, quick: bool) -> Question:
    shape, rank = ((20,) * 3, 2) if quick else ((100,) * 3, 10)
    data = synthetic(shape, rank, outliers=0.05, missing=0.7, seed=0)
    return _against("5 % outliers, 70 % missing", data, HUBER, 1.0)


def _matrix(*, quick: bool) -> Question:
    shape, rank = ((50, 50), 2) if quick else ((500, 500), 10)
    return _against("10 % outliers", synthetic(shape, rank, outliers=0.1, seed=0), PURSUIT, 0.5)


def _rows_of_unequal_noise(shape: tuple[int, ...]) -> Synthetic:
    """A matrix of rank 2 in single precision, whose rows have noise levels of their own."""
    data = synthetic(shape, 2, outliers=0.05, seed=0)
    levels = np.exp(0.5 * np.random.default_rng(1).standard_normal((shape[0], 1)))
    return replace(data, observed=(data.low_rank + data.outliers + levels * data.noise).astype(np.float32))


def _noise_per_slice(*, quick: bool) -> Question:
    data = _rows_of_unequal_noise((300, 20) if quick else (6000, 100))
    return _against("float32, 5 % outliers, noise per row", data, PURSUIT, None)


def _coordinates(*, quick: bool) -> Question:
    """Few entries of a large tensor. The error is that at other places; the rival is one pass over the entries."""
    length, n_entries, rank = (30, 3_000, 2) if quick else (1000, 1_000_000, 5)
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((length, rank)) for _ in range(3)]
    coords, others = rng.integers(0, length, (2, n_entries, 3))
    coords = np.unique(coords, axis=0)
    values = _values(factors, coords) + 0.1 * math.sqrt(rank) * rng.standard_normal(len(coords))
    wrong = rng.random(len(coords)) < 0.05
    values[wrong] += 10.0 * math.sqrt(rank) * rng.uniform(-1.0, 1.0, np.count_nonzero(wrong))
    others = others[:100_000]
    truth = _values(factors, others)
    return Question(
        f"fit of {n_entries:,} coordinates in {times((length,) * 3)}, rank {rank}, 5 % outliers, told nothing",
        Observations.from_coords(tuple(coords.T), values, (length,) * 3),
        lambda model: rrse(model.predict(others.T), truth),
        "one pass over them: the products of all modes by bincounts",
        partial(_one_pass, factors, coords.T.copy(), values),
        100.0,
    )


def _values(factors: list[Array], coords: Array) -> Array:
    """The low-rank part at coordinates (n, N)."""
    rows = [factor[index] for factor, index in zip(factors, coords.T, strict=True)]
    return np.asarray(np.prod(rows, axis=0).sum(axis=1))


def _one_pass(factors: list[Array], coords: Array, values: Array) -> None:
    """Data times all factors but one, summed over the entries of each row, for every mode."""
    for mode, index in enumerate(coords):
        others = [k for k in range(len(coords)) if k != mode]
        for column in range(factors[0].shape[1]):
            weights = values * math.prod(factors[k][coords[k], column] for k in others)
            np.bincount(index, weights, factors[mode].shape[0])


QUESTIONS: tuple[Callable[..., Question], ...] = (
    partial(_cube, 100, 20, 1.0),
    partial(_cube, 160, 24, 1.0),
    partial(_many_components, 0.01),
    partial(_many_components, 0.05),
    _incomplete,
    _matrix,
    _coordinates,
    _noise_per_slice,
)
"""Called with ``quick``, each makes a question, small if that is True."""


def sweeps_of_moves(effort: Effort) -> Iterator[Measurement]:
    """Target 11: sweeps of the moves of a search against those that the final state needs from the true factors."""
    cases = [
        ("the paper's tensor, 50 % missing, 10 % outliers", paper_synthetic(missing=0.5, seed=1)),
        ("30×30×30, rank 50, 5 % outliers", paper_synthetic(rank=50, outliers=0.05, noise="20dB", seed=1)),
        ("60×60×60, rank 8, 70 % missing, 5 % outliers", synthetic((60,) * 3, 8, outliers=0.05, missing=0.7, seed=0)),
        ("40×30×20, rank 5, cosines of 0.8", synthetic((40, 30, 20), 5, outliers=0.1, collinearity=0.8, seed=0)),
        ("1000×50, rank 2, noise per row", _rows_of_unequal_noise((1000, 50))),
        ("12×11×10, rank 2, 10 % outliers", synthetic((12, 11, 10), 2, outliers=0.1, seed=0)),
    ]
    for words, data in cases[-1:] if effort.quick else cases:
        model, from_truth = quiet_fit(data.observed), quiet_fit(data.observed, init=data.factors)
        needed = _of_the_state(from_truth)
        of_moves = model.n_sweeps_ - _of_the_state(model)
        note = (
            f"{of_moves} of {model.n_sweeps_} and {needed} sweeps, rank {model.rank_}, "
            f"error {rrse(model.low_rank(), data.low_rank):.4f}"
        )
        against = "those that the final state needs from the true factors"
        yield Measurement(11, f"sweeps of moves: {words}", of_moves / needed, against, LIMIT_OF_MOVES, note=note)


def _of_the_state(model: BRTF) -> int:
    """Sweeps of the first start and, later, of the best state so far: all but those of further starts and moves."""
    first, *rest = model.result_.trace
    return first.sweep + sum(record.event.kind in (Kind.SWEEP, Kind.PRUNE) for record in rest)
