"""Generated tensors with a known low-rank part, outliers and noise."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from brtf.kernels.dense import compose

Law = Callable[[np.random.Generator, int], NDArray[np.float64]]
_OUTLIER_LAWS: dict[str, Law] = {
    "uniform": lambda rng, n: rng.uniform(-1.0, 1.0, n),
    "one-sided": lambda rng, n: rng.uniform(0.0, 1.0, n),
    "log-uniform": lambda rng, n: rng.choice([-1.0, 1.0], n) * 10.0 ** rng.uniform(-3.0, 0.0, n),
    "student-t": lambda rng, n: rng.standard_t(3, n),
}
# Unit variance: a Student-t of 3 degrees of freedom has variance 3.
_NOISE_LAWS: dict[str, Law] = {
    "gaussian": lambda rng, n: rng.standard_normal(n),
    "student-t": lambda rng, n: rng.standard_t(3, n) / math.sqrt(3.0),
}
_FACTOR_LAWS: dict[str, Law] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "uniform": lambda rng, n: rng.uniform(0.0, 1.0, n),
}


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A synthetic tensor and the parts it was made of.

    ``observed = low_rank + outliers + noise`` where ``mask`` is True, NaN elsewhere. Outliers and noise are given for
    all entries, including those that are missing from ``observed``.

    Attributes
    ----------
    observed : ndarray
        The tensor Y, NaN where missing.
    mask : ndarray of bool
        True where observed.
    low_rank : ndarray
        The tensor X.
    outliers : ndarray
        The tensor S, zero where there is no outlier.
    noise : ndarray
        The noise of every entry.
    factors : list of ndarray
        The true factors, of shapes (I_n, rank).
    noise_variance : float
        Variance of the distribution of the noise.
    """

    observed: NDArray[np.float64]
    mask: NDArray[np.bool_]
    low_rank: NDArray[np.float64]
    outliers: NDArray[np.float64]
    noise: NDArray[np.float64]
    factors: list[NDArray[np.float64]]
    noise_variance: float


def paper_synthetic(
    *,
    outliers: float = 0.1,
    magnitude: str = "10std",
    missing: float = 0.0,
    rank: int = 3,
    noise: float | str = 0.01,
    seed: int = 0,
) -> Synthetic:
    """The 30 x 30 x 30 tensor of the paper's experiments (section V-A).

    The columns of the mode-n factor are, for i = 1..30, ``sin(2πni/30)``, ``cos(2πni/30)`` and the pattern +1, +1, -1,
    -1, … (the paper's ``sgn(sin(πi/2))``, whose every second value depends on rounding). Outliers uniform on (-H, H)
    are added to a random fraction of the entries and noise to all of them; then a random fraction is removed.

    Parameters
    ----------
    outliers : float
        Fraction of entries with an outlier; their number is ``round(outliers * 27000)``.
    magnitude : {"10std", "max"}
        H: ten times the standard deviation of X, or its largest value.
    missing : float
        Fraction of missing entries, below 1; their number is ``round(missing * 27000)``.
    rank : int
        Number of components, at least 1. Below 3 only the first columns are used; above 3 standard normal columns are
        appended, as for the paper's Table 1 with rank 50.
    noise : float or str
        Variance of the Gaussian noise, or the signal-to-noise ratio over the whole tensor, such as
        "20dB". The paper says 0.01; its Table 1 agrees with "20dB".
    seed : int
        The same seed gives the same data.

    Returns
    -------
    Synthetic
    """
    rank = check_count("rank", rank, smallest=1)
    rng = np.random.default_rng(seed)
    size = 30
    index = np.arange(1, size + 1)
    pattern = np.where((index - 1) % 4 < 2, 1.0, -1.0)
    factors = []
    for mode in (1, 2, 3):
        angle = 2 * np.pi * mode * index / size
        further = rng.standard_normal((size, max(rank - 3, 0)))
        factors.append(np.column_stack([np.sin(angle), np.cos(angle), pattern, further])[:, :rank])
    low_rank = compose(factors)
    scales = {"10std": 10.0 * float(np.std(low_rank)), "max": float(np.max(low_rank))}
    return _corrupt(
        rng,
        factors,
        low_rank,
        outliers=outliers,
        outlier_law=_OUTLIER_LAWS["uniform"],
        outlier_scale=pick("magnitude", magnitude, scales),
        missing=missing,
        noise=noise,
    )


def synthetic(
    shape: Sequence[int],
    rank: int,
    *,
    outliers: float = 0.0,
    outlier_law: str | Law = "uniform",
    magnitude: float = 10.0,
    outlier_pattern: str = "entries",
    missing: float = 0.0,
    missing_pattern: str = "entries",
    noise: float | str = 0.01,
    noise_law: str = "gaussian",
    collinearity: float = 0.0,
    collinear_modes: Sequence[int] | None = None,
    strengths: Sequence[float] | None = None,
    factor_law: str = "normal",
    seed: int = 0,
) -> Synthetic:
    """A low-rank tensor of any shape and rank, with outliers, noise and missing entries of chosen kinds.

    The factors are random and scaled, equally over the modes, so that the standard deviation of X is 1; magnitude and
    noise are relative to it. With rank 0, X is zero and they are absolute.

    Parameters
    ----------
    shape : sequence of int
        Lengths of the modes, at least two.
    rank : int
        Number of components, at least 0.
    outliers : float
        Fraction of entries (or of fibres) with an outlier; their number is ``round(outliers * count)``.
    outlier_law : {"uniform", "one-sided", "log-uniform", "student-t"} or callable
        How large outliers are, in units of ``magnitude``: uniform on (-1, 1); uniform on (0, 1); either sign
        and a size log-uniform on (0.001, 1); Student-t with 3 degrees of freedom; or ``law(generator, n)``,
        which returns n values.
    magnitude : float
        Scale of the outliers, in standard deviations of X.
    outlier_pattern : {"entries", "fibres"}
        Outliers at random entries, or on whole fibres along mode 0, with a separate value for every entry.
    missing : float
        Fraction of missing entries (or fibres), below 1; their number is ``round(missing * count)``.
    missing_pattern : {"entries", "fibres", "level"}
        Random entries, or whole fibres along mode 0, or not at random: an entry whose ``|x|`` is one standard deviation
        larger is e times as likely to be removed next.
    noise : float or str
        Variance of the noise, or the signal-to-noise ratio over the whole tensor, such as "20dB":
        ``variance = mean(X²) / 10^(dB/10)``.
    noise_law : {"gaussian", "student-t"}
        Student-t has 3 degrees of freedom and is scaled to the given variance.
    collinearity : float
        Exact cosine between any two components in each of ``collinear_modes``, below 1. With 0 the columns are drawn
        independently, and their cosines are small but not zero.
    collinear_modes : sequence of int, optional
        All modes by default.
    strengths : sequence of float, optional
        Relative Frobenius norms of the rank-one terms, one per component; as drawn by default.
    factor_law : {"normal", "uniform"}
        Distribution of the entries of the factors: standard normal, or uniform on (0, 1), hence positive.
    seed : int
        The same seed gives the same data.

    Returns
    -------
    Synthetic
    """
    if not isinstance(shape, Sequence | np.ndarray) or isinstance(shape, str):
        raise TypeError(f"shape must be a sequence of lengths, one per mode, such as (30, 20), got {shape!r}.")
    shape = tuple(check_count(f"shape[{mode}]", size, smallest=1) for mode, size in enumerate(shape))
    if len(shape) < 2:
        raise ValueError(f"shape must have at least two modes, got {shape}.")
    rank = check_count("rank", rank, smallest=0)
    law = outlier_law if callable(outlier_law) else pick("outlier_law", outlier_law, _OUTLIER_LAWS)
    if not (math.isfinite(magnitude) and magnitude > 0):
        raise ValueError(f"magnitude must be positive and finite, got {magnitude!r}.")
    check_fraction("collinearity", collinearity, below_one=True)
    draw_factor = pick("factor_law", factor_law, _FACTOR_LAWS)
    rng = np.random.default_rng(seed)

    factors = [draw_factor(rng, size * rank).reshape(size, rank) for size in shape]
    if collinearity > 0:
        if factor_law != "normal":
            raise ValueError(f"collinearity={collinearity} needs factor_law='normal', got {factor_law!r}.")
        for mode in range(len(shape)) if collinear_modes is None else collinear_modes:
            if mode not in range(len(shape)):
                raise ValueError(f"collinear_modes holds {mode!r}, but the modes are 0 to {len(shape) - 1}.")
            factors[mode] = _collinear(factors[mode], collinearity, mode)
    if strengths is not None:
        factors = _with_strengths(factors, strengths)
    if rank > 0:
        spread = float(np.std(compose(factors)))
        if spread == 0:
            raise ValueError(f"shape {shape} and rank {rank} give a constant X. Use a shape of more entries.")
        factors = [factor * spread ** (-1 / len(shape)) for factor in factors]
    return _corrupt(
        rng,
        factors,
        compose(factors),
        outliers=outliers,
        outlier_law=law,
        outlier_scale=magnitude,
        outlier_pattern=outlier_pattern,
        missing=missing,
        missing_pattern=missing_pattern,
        noise=noise,
        noise_law=noise_law,
    )


def _corrupt(
    rng: np.random.Generator,
    factors: list[NDArray[np.float64]],
    low_rank: NDArray[np.float64],
    *,
    outliers: float,
    outlier_law: Law,
    outlier_scale: float,
    outlier_pattern: str = "entries",
    missing: float,
    missing_pattern: str = "entries",
    noise: float | str,
    noise_law: str = "gaussian",
) -> Synthetic:
    """Add outliers to a fraction of the entries and noise to all, then hide a fraction of them."""
    check_fraction("outliers", outliers, below_one=False)
    check_fraction("missing", missing, below_one=True)
    shape = low_rank.shape
    # Entries with the largest keys are removed first: equal chances for entries or for fibres, or more for
    # larger values (Gumbel keys sample without replacement in proportion to exp|x|).
    keys: dict[str, Callable[[], NDArray[np.float64]]] = {
        "entries": lambda: rng.random(shape),
        "fibres": lambda: rng.random((1, *shape[1:])),
        "level": lambda: np.abs(low_rank) + rng.gumbel(size=shape),
    }
    outlier_keys = pick("outlier_pattern", outlier_pattern, {name: keys[name] for name in ("entries", "fibres")})
    missing_keys = pick("missing_pattern", missing_pattern, keys)
    draw_noise = pick("noise_law", noise_law, _NOISE_LAWS)

    chosen = np.broadcast_to(largest(outlier_keys(), outliers), shape)
    n_outliers = int(np.count_nonzero(chosen))
    drawn = np.asarray(outlier_law(rng, n_outliers), dtype=np.float64)
    if drawn.shape != (n_outliers,) or not np.isfinite(drawn).all():
        raise ValueError(
            f"outlier_law must return {n_outliers} finite values, got shape {drawn.shape} with "
            f"{np.count_nonzero(~np.isfinite(drawn))} not finite."
        )
    outlier_values = np.zeros(shape)
    outlier_values[chosen] = outlier_scale * drawn

    variance = _noise_variance(noise, low_rank)
    noise_values = math.sqrt(variance) * draw_noise(rng, low_rank.size).reshape(shape)

    mask = ~np.broadcast_to(largest(missing_keys(), missing), shape)
    if not mask.any():
        raise ValueError(f"missing={missing} of a tensor of shape {shape} leaves no entry observed. Use less.")
    return Synthetic(
        observed=np.where(mask, low_rank + outlier_values + noise_values, np.nan),
        mask=mask,
        low_rank=low_rank,
        outliers=outlier_values,
        noise=noise_values,
        factors=factors,
        noise_variance=variance,
    )


def _collinear(factor: NDArray[np.float64], cosine: float, mode: int) -> NDArray[np.float64]:
    """Columns of mean square 1 with the same cosine between any two, in random position."""
    size, rank = factor.shape
    if rank > size:
        raise ValueError(
            f"collinearity={cosine} needs rank <= size in every collinear mode, got rank {rank} and size "
            f"{size} in mode {mode}. Leave the mode out of collinear_modes."
        )
    gram = np.full((rank, rank), cosine)
    np.fill_diagonal(gram, 1.0)
    return np.asarray(math.sqrt(size) * np.linalg.qr(factor)[0] @ np.linalg.cholesky(gram).T)


def _with_strengths(factors: list[NDArray[np.float64]], strengths: Sequence[float]) -> list[NDArray[np.float64]]:
    """The factors rescaled, equally over the modes, to rank-one terms of the given Frobenius norms."""
    wanted = np.asarray(strengths, dtype=np.float64)
    rank = factors[0].shape[1]
    if wanted.shape != (rank,) or not (np.isfinite(wanted) & (wanted > 0)).all():
        raise ValueError(f"strengths must be {rank} positive numbers, one per component, got {strengths!r}.")
    share = wanted ** (1 / len(factors))
    return [share * factor / np.linalg.norm(factor, axis=0) for factor in factors]


def largest(keys: NDArray[np.float64], fraction: float) -> NDArray[np.bool_]:
    """True at the round(fraction * size) largest keys."""
    count = round(fraction * keys.size)
    chosen = np.zeros(keys.size, dtype=bool)
    chosen[np.argsort(keys, axis=None)[keys.size - count :]] = True
    return chosen.reshape(keys.shape)


def _noise_variance(noise: float | str, low_rank: NDArray[np.float64]) -> float:
    """The variance itself, or the one that gives X the signal-to-noise ratio in decibels."""
    if isinstance(noise, str):
        match = re.fullmatch(r"\s*([-+]?\d+(?:\.\d*)?)\s*dB\s*", noise, flags=re.IGNORECASE)
        if match is None:
            raise ValueError(f"noise must be a variance or a ratio such as '20dB', got {noise!r}.")
        if not low_rank.any():
            raise ValueError(f"noise={noise!r} is relative to X, which is zero. Give the variance instead.")
        return float(np.mean(low_rank**2)) / 10 ** (float(match[1]) / 10)
    if not (math.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise must be a variance, finite and not negative, or '20dB', got {noise!r}.")
    return float(noise)


Choice = TypeVar("Choice")


def pick(name: str, value: str, choices: Mapping[str, Choice]) -> Choice:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    return choices[value]


def check_fraction(name: str, value: float, *, below_one: bool) -> None:
    if not 0 <= value <= 1 or (below_one and value == 1):
        raise ValueError(f"{name} must be a fraction from 0 to 1{', below 1' if below_one else ''}, got {value!r}.")


def check_count(name: str, value: int, *, smallest: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}.") from None
    if count < smallest:
        raise ValueError(f"{name} must be at least {smallest}, got {count}.")
    return count
