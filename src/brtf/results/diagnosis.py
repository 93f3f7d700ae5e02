"""Doubts about a finished fit: data that the model does not describe, each with what to do about it."""

from __future__ import annotations

import numpy as np

from brtf.data.arrays import Array
from brtf.inference.trace import Doubt, Kind
from brtf.results.result import Result

MANY_OUTLIERS = 0.5
"""Share of the observed entries beyond which outliers are no exception any more."""
MANY_EQUAL, FEWEST_OTHERS = 0.25, 0.05
"""Share of entries of one value from which it is looked at who the others are, and their share at least."""
RARER_VALUE = 0.02
"""Share of the rarer of two values from which data count as binary."""
MET = 0.005
"""Share of outliers below which data are as good as met."""
BEYOND_CHANCE, N_CONTROLS, CLIP = 1.5, 5, 3.0
"""How much more the leading direction of the residuals must explain than that of the same residuals with random signs,
of which there are so many; and standard deviations at which they are clipped."""
LARGEST_LOOKED_AT, LONGEST_MODE = 4_000_000, 1000
"""Entries of a tensor, and length of a mode, up to which the residuals are searched for structure."""


def diagnose(result: Result) -> tuple[Doubt, ...]:
    """The doubts about a fit, the gravest first; empty where nothing is wrong."""
    found = (
        _not_converged(result),
        _mask(result),
        _rank(result),
        _cap(result),
        _values(result),
        _outliers(result),
        _replacement(result),
    )
    return tuple(doubt for doubt in found if doubt is not None)


def _not_converged(result: Result) -> Doubt | None:
    if result.stop_reason.converged:
        return None
    return Doubt("not converged", result.stop_reason.value, "The numbers may still change: fit longer before use.")


def _mask(result: Result) -> Doubt | None:
    if not result.observations.mask_doubted:
        return None
    return Doubt(
        "mask",
        "All entries that the mask calls observed are equal, and most of the others are not.",
        "The mask is probably inverted: True means observed. Pass mask=~mask.",
    )


def _rank(result: Result) -> Doubt | None:
    if result.settings.inference == "paper":  # whose outliers take up the noise
        return None
    if result.rank > 0 or not _has_structure(result):
        return None
    return Doubt(
        "rank 0",
        "No component was found, yet the data have structure: their leading direction explains far more than chance.",
        "It is called outliers, or is not low-rank, as a peak that moves is not. Look at the data; try "
        'link="log" or "sqrt" where levels span decades, or robust=False.',
    )


def _cap(result: Result) -> Doubt | None:
    if result.cap_gain is None:
        return None
    return Doubt(
        "cap",
        f"max_rank={result.settings.max_rank} was reached; one more component would raise the bound by about "
        f"{result.cap_gain:,.{0 if result.cap_gain >= 10 else 1}f} nats.",
        "Raise max_rank, or leave it out: without it the rank is found.",
    )


def _values(result: Result) -> Doubt | None:
    """Two values, or one value nearly everywhere: no noise is around them."""
    observations = result.observations
    if observations.in_chunks:
        return None
    values, counts = np.unique(observations.values, return_counts=True)
    if values.size < 2 or (result.outlier_rate < MET and _is_met(result)):
        return None
    share = counts / counts.sum()
    if values.size == 2 and share.min() >= RARER_VALUE and counts.min() > 1:
        return Doubt(
            "binary",
            f"The data have two values only, {values[0]:.6g} and {values[1]:.6g}.",
            "brtf describes numbers with Gaussian noise: read the low-rank part as a score, not as a probability, and "
            "do not trust outliers and intervals.",
        )
    common = int(counts.argmax())
    if not MANY_EQUAL <= share[common] <= 1.0 - FEWEST_OTHERS:
        return None
    others = observations.values.ravel() != values[common]
    outlying = float(np.mean(result.outlier_probability_at_entries()[others]))
    if outlying <= MANY_OUTLIERS:
        return None
    return Doubt(
        "equal values",
        f"{100 * share[common]:.3g} % of the entries are exactly {values[common]:.6g}, and {100 * outlying:.3g} % of "
        "the others are called outliers: entries that are all equal show no noise.",
        f'Counts: try link="sqrt". If {values[common]:.6g} stands for missing, mark it so: mask=, or NaN.',
    )


def _outliers(result: Result) -> Doubt | None:
    if result.outlier_rate <= MANY_OUTLIERS:
        return None
    return Doubt(
        "outliers",
        f"{100 * result.outlier_rate:.3g} % of the entries are called outliers: that is no exception any more.",
        ("" if result.settings.max_rank is None else "Raise max_rank, or leave it out. ")
        + 'Try link="log" or "sqrt" where noise grows with the level, noise="auto" where it differs between '
        'slices, or outlier_kind="replacement" where other values stand in place of the data.',
    )


def _replacement(result: Result) -> Doubt | None:
    structure = result.state.structure
    if result.settings.outlier_kind != "replacement" or (structure is not None and structure.law is not None):
        return None
    if not any(record.event.kind is Kind.ADDITIVE for record in result.trace):
        return None
    return Doubt(
        "replacement",
        "The data do not support outliers that replace values: outliers are added to the data instead.",
        'Use outlier_kind="additive".',
    )


def _is_met(result: Result) -> bool:
    """Whether the noise is far below the data."""
    return result.state.noise_variance < 1e-6


def _has_structure(result: Result) -> bool:
    """Whether the residuals, as one unfolding after the other, have a leading direction beyond chance."""
    observations = result.observations
    if observations.in_chunks or observations.n_entries > LARGEST_LOOKED_AT:
        return False
    residual = result.standardized_residuals()
    typical = 1.4826 * float(np.median(np.abs(residual)))
    if not typical > 0:
        return False
    residual = np.clip(residual, -CLIP * typical, CLIP * typical) / typical
    rng = np.random.default_rng(0)
    modes = [mode for mode, length in enumerate(observations.shape) if 1 < length <= LONGEST_MODE]
    place = tuple(observations.entry_coords())

    def leading(numbers: Array, mode: int) -> float:
        dense = np.zeros(observations.shape)
        dense[place] = numbers
        unfolded = np.moveaxis(dense, mode, 0).reshape(observations.shape[mode], -1)
        return float(np.linalg.eigvalsh(unfolded @ unfolded.T)[-1])

    for mode in modes:
        chance = max(leading(residual * rng.choice([-1.0, 1.0], residual.size), mode) for _ in range(N_CONTROLS))
        if leading(residual, mode) > BEYOND_CHANCE * chance:
            return True
    return False
