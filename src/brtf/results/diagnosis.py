"""Diagnosis of a finished fit: signs that the model does not suit the data, each with a remedy."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array, evenly_spaced
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Sums, add_up, visit
from brtf.data.scale import SD_PER_MEDIAN
from brtf.inference.trace import Doubt, Kind
from brtf.model.state import LARGEST_PRECISION, MeanFieldOutliers
from brtf.results.result import Result

MANY_OUTLIERS = 0.5
"""Share of the observed entries above which outliers are doubted: a few data sets have so many, but so has any data set
that the model does not suit, and the fit alone cannot tell which."""
MANY_EQUAL, FEWEST_OTHERS = 0.25, 0.05
"""Share of entries with the same value from which the others are examined, and the minimum share of those."""
MOST_CANDIDATES = 16
"""Largest number of values counted over all data, out of those that are common in some block."""
RARER_VALUE = 0.02
"""Share of the rarer of two values from which data are considered binary."""
MET, NO_NOISE = 0.005, 1e-6
"""Outlier rate and noise variance, for data of unit scale, below which the data count as fitted exactly."""
BEYOND_CHANCE, N_CONTROLS, CLIP = 1.5, 5, 3.0
"""How much more the leading singular direction of the residuals must explain than with random signs, the number of
random sign patterns, and the number of standard deviations at which residuals are clipped."""
FEWEST_CODES, OTHER_CODE = 5, 0.1
"""How often a value must occur to be taken for a code, and how often, relative to it, the value at the other end may:
dead and saturated pixels, at both ends, are outliers and no code."""
NINES = re.compile(r"-99+")
"""Codes for a missing value in many files: −99, −999, …"""
HIDDEN = 0.01
"""Smallest noise that a fit distinguishes, over the spread of the data, from which it may hide structure."""
Code = tuple[float, int, str]
"""A value that may stand for what is missing, how many entries have it, and why it may."""
LARGEST_SAMPLE = 2**16
"""Largest number of entries whose medians are taken: those of more, evenly spaced, are known well enough."""
LARGEST_LOOKED_AT, LONGEST_MODE = 4_000_000, 1000
"""Largest number of entries, and largest length of a mode, for which the residuals are searched for structure."""


def diagnose(result: Result) -> tuple[Doubt, ...]:
    """The problems found with a fit, the most serious first; empty if there are none."""
    found = (
        _not_converged(result),
        _mask(result),
        _offset(result),
        _rank(result),
        _cap(result),
        _values(result),
        _code(result),
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
        "All observed entries are equal, and most of the masked entries are not.",
        "The mask is probably inverted: True means observed. Pass mask=~mask.",
    )


def _offset(result: Result) -> Doubt | None:
    """Data that vary by a tiny share of their size, which the smallest noise of a fit hides."""
    observations = result.observations
    if observations.in_chunks or observations.n_observed > LARGEST_LOOKED_AT:
        return None
    modelled = result.as_modelled(observations)
    values = modelled.values.ravel()[evenly_spaced(observations.n_observed, LARGEST_SAMPLE)]
    middle = float(np.median(values))
    spread = SD_PER_MEDIAN * float(np.median(np.abs(values - middle)))
    resolved = modelled.scale / math.sqrt(LARGEST_PRECISION)
    if not (0.0 < HIDDEN * spread < resolved and HIDDEN * abs(middle) > spread):
        return None
    return Doubt(
        "offset",
        f"The data vary by {spread / abs(middle):.2g} of their size, and noise below {resolved / modelled.scale:.0e} "
        "of it is not distinguished from none: structure may be hidden.",
        "Subtract what is common to all entries, such as numpy.nanmedian(Y), and fit what is left.",
    )


def _rank(result: Result) -> Doubt | None:
    if result.settings.inference == "paper":  # in which outliers absorb the noise
        return None
    if result.rank > 0:
        return None
    if result.observations.in_chunks or result.observations.n_entries > LARGEST_LOOKED_AT:
        return Doubt(
            "rank 0",
            "No component was found, and the data are in chunks or too many to be searched for structure that was "
            "missed.",
            "Fit a part of them in memory: if they have structure all the same, its diagnosis tells.",
        )
    if not _has_structure(result):
        return None
    return Doubt(
        "rank 0",
        "No component was found, yet the data have structure: their leading direction explains far more than chance.",
        "It was explained as outliers, or it is not low-rank, like a moving peak. Plot the data; try "
        'link="log" or "sqrt" if values span orders of magnitude, or robust=False.',
    )


def _cap(result: Result) -> Doubt | None:
    if result.cap_gain is None:
        return None
    return Doubt(
        "cap",
        f"max_rank={result.settings.max_rank} was reached; one more component would raise the bound by about "
        f"{result.cap_gain:,.{0 if result.cap_gain >= 10 else 1}f} nats.",
        "Raise max_rank, or leave it out to have the rank determined.",
    )


def _values(result: Result) -> Doubt | None:
    """Data with only two values, or one value nearly everywhere, which show no Gaussian noise."""
    if result.outlier_rate < MET and result.state.noise_variance < NO_NOISE:
        return None
    distinct, common, share = _tally(result.observations)
    rarer = min(share, 1.0 - share)
    if len(distinct) == 2 and rarer >= RARER_VALUE and rarer * result.observations.n_observed > 1.5:
        return Doubt(
            "binary",
            f"The data have only two values, {distinct[0]:.6g} and {distinct[1]:.6g}.",
            "brtf assumes Gaussian noise: read the low-rank part as a score, not as a probability, and "
            "do not trust outliers and intervals.",
        )
    if not MANY_EQUAL <= share <= 1.0 - FEWEST_OTHERS:
        return None
    outlying = _outlying_beside_the_common(result)
    if outlying <= MANY_OUTLIERS:
        return None
    return Doubt(
        "equal values",
        f"{100 * share:.3g} % of the entries are exactly {common:.6g}, and {100 * outlying:.3g} % of "
        "the others were labelled outliers: entries that are all equal show no noise.",
        f'For counts try link="sqrt". If {common:.6g} means missing, pass mask= or set it to NaN.',
    )


def _tally(observations: Observations) -> tuple[list[float], float, float]:
    """The distinct values, three at most; and one that at least a quarter of the entries have, with its share.

    Where there is none, that one is NaN and its share 0. What is so common in all data is so in at least one block.
    """

    def look(sums: Sums, block: Block) -> tuple[list[float], dict[float, int]]:
        values, counts = np.unique(block.values, return_counts=True)
        often = counts >= MANY_EQUAL * counts.sum()
        return values[:3].tolist(), dict(zip(values[often].tolist(), counts[often].tolist(), strict=True))

    looks = visit(observations, tuple, look)[1]
    distinct = sorted({value for values, _ in looks for value in values})[:3]
    seen: Counter[float] = Counter()
    for _, counts in looks:
        seen.update(counts)
    candidates = [value for value, _ in seen.most_common(MOST_CANDIDATES)]

    def add(sums: Sums, block: Block) -> None:
        sums[0][...] += [np.count_nonzero(block.values == value) for value in candidates]

    (n_equal,) = add_up(observations, lambda: (np.zeros(len(candidates)),), add)
    if not n_equal.max(initial=0.0) >= MANY_EQUAL * observations.n_observed:
        return distinct, math.nan, 0.0
    most = int(n_equal.argmax())
    return distinct, candidates[most], float(n_equal[most]) / observations.n_observed


def _outlying_beside_the_common(result: Result) -> float:
    """The mean outlier probability of the entries that do not have the most common value."""
    if isinstance(result.state.local, MeanFieldOutliers):  # whose entries are all in memory
        values = result.observations.values.ravel()
        return float(np.mean(result.outlier_probability_at_entries()[values != _tally(result.observations)[1]]))
    observations, of_block = result.entries_together, result.outliers_of_block
    common = _tally(observations)[1]  # as the model sees it

    def add(sums: Sums, block: Block) -> None:
        others = block.values.ravel() != common
        sums[0][...] += np.count_nonzero(others), of_block(block)[0].ravel()[others].sum()

    n_others, outlying = add_up(observations, lambda: (np.zeros(2),), add)[0]
    return float(outlying / n_others)


def _code(result: Result) -> Doubt | None:
    """A value that may stand for what is missing, by where it lies or, unless it was said that values are replaced, by
    how often it occurs."""
    observations = result.observations
    if observations.in_chunks or observations.n_observed > LARGEST_LOOKED_AT:
        return None
    values = observations.values.ravel()
    outlying = result.outlier_probability_at_entries() > 0.5
    found = _code_at_an_end(values, outlying)
    if found is None and result.settings.outlier_kind != "replacement":
        found = _code_among_outliers(values, outlying)
    if found is None:
        return None
    code, n_coded, why = found
    return Doubt(
        "code",
        f"{n_coded:,} entries are exactly {code:.6g}, {why}.",
        f"If {code:.6g} stands for a value that is missing, set it to NaN or pass mask=: now it counts as measured.",
    )


def _code_at_an_end(values: NDArray[np.floating[Any]], outlying: NDArray[np.bool_]) -> Code | None:
    """One value, repeated exactly and farther from all regular entries than these are from each other, or -99, -999, …

    Nines below all regular entries stand for what is missing however near these are, and so does −1 below numbers that
    are not negative, where it occurs more often than the least of these.
    """
    ends = [float(values.min()), float(values.max())]
    counts = [int(np.count_nonzero(values == end)) for end in ends]
    end = int(counts[0] <= counts[1])
    code, n_coded, n_opposite = ends[end], counts[end], counts[1 - end]
    if n_coded < FEWEST_CODES or n_opposite > OTHER_CODE * n_coded or ends[0] == ends[1]:
        return None
    rest = values[values != code]
    least = float(rest.min())
    if code == -1.0 and least >= 0.0 and ends[1] > 1.0 and np.count_nonzero(rest == least) < n_coded < rest.size:
        return code, n_coded, "the only value below zero"
    others = values[(values != code) & ~outlying]
    n_spoiled = np.count_nonzero(outlying & (values != code))  # objects that saturate a few pixels are no code
    if not n_spoiled < n_coded < others.size:
        return None
    low, high = float(others.min()), float(others.max())
    is_far = max(low - code, code - high) > high - low > 0
    if not is_far and not (code < low and NINES.fullmatch(f"{code:.15g}")):
        return None
    where = "far from" if is_far else "below"
    return code, n_coded, f"{where} the others, which go from {low:.4g} to {high:.4g}"


def _code_among_outliers(values: NDArray[np.floating[Any]], outlying: NDArray[np.bool_]) -> Code | None:
    """The value of most outliers, if most of its entries are outliers and hardly any other value is repeated."""
    if np.count_nonzero(outlying) < FEWEST_CODES:
        return None
    distinct, counts = np.unique(values[outlying], return_counts=True)
    code, n_outlying = distinct[counts.argmax()], int(counts.max())
    n_coded = int(np.count_nonzero(values == code))
    if n_outlying < FEWEST_CODES or n_outlying <= max(0.5 * n_coded, counts.sum() - n_outlying):
        return None
    if np.unique(values[values != code], return_counts=True)[1].max(initial=0) > OTHER_CODE * n_coded:
        return None
    share = f"{100 * n_outlying / n_coded:.3g} %"
    return float(code), n_coded, f"of which {share} were labelled outliers, and hardly any other value is repeated"


def _outliers(result: Result) -> Doubt | None:
    if result.outlier_rate <= MANY_OUTLIERS:
        return None
    return Doubt(
        "outliers",
        f"{100 * result.outlier_rate:.3g} % of the entries were labelled outliers: either most entries are corrupted, "
        "or the model does not suit the data.",
        "If you expected so many, compare the low-rank part with entries that you trust. If not: "
        + ("" if result.settings.max_rank is None else "raise max_rank, or leave it out; ")
        + 'leave noise, link and outlier_kind at "auto"; name outlier_modes if outliers come in groups, and '
        'outlier_kind="replacement" if values are replaced rather than shifted.',
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


def _has_structure(result: Result) -> bool:
    """Whether any unfolding of the residuals has a leading singular direction beyond chance."""
    observations = result.observations
    residual = result.standardized_residuals()
    typical = SD_PER_MEDIAN * float(np.median(np.abs(residual)))
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
