"""Measures that compare an estimate with a known truth: values, factors, masks and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["best_f_measure", "coverage", "f_measure", "fme", "fme_per_mode", "psnr", "rrse"]


def rrse(estimate: ArrayLike, truth: ArrayLike) -> float:
    """Root relative square error: the size of the error relative to the size of the truth.

    ``‖estimate - truth‖ / ‖truth‖``, with Frobenius norms over all entries, observed and missing alike. Zero is
    perfect; an all-zero estimate scores 1.

    Parameters
    ----------
    estimate, truth : array_like
        Two tensors of the same shape, finite.

    Returns
    -------
    float
    """
    estimate, truth = _pair(estimate, truth)
    size = _norm(truth)
    if size == 0:
        raise ValueError(
            f"truth is zero in all its {truth.size} entries, so an error relative to it is undefined. "
            "Use an absolute error, such as the root mean square."
        )
    return _norm(estimate - truth) / size


def psnr(estimate: ArrayLike, truth: ArrayLike, *, peak: float = 255.0) -> float:
    """Peak signal-to-noise ratio in decibels; larger is better, infinite when the estimate is exact.

    ``10 log10(peak² / mean((estimate - truth)²))`` with one mean over the whole tensor, not an average of the ratios of
    its images. Values of the estimate outside [0, peak] are not clipped.

    Parameters
    ----------
    estimate, truth : array_like
        Two tensors of the same shape, finite.
    peak : float
        The largest value the data can take: 255 for 8-bit images, 1 for data in [0, 1].

    Returns
    -------
    float
    """
    if not (math.isfinite(peak) and peak > 0):
        raise ValueError(f"peak must be positive and finite, got {peak!r}. Use 255 for 8-bit data, 1 for [0, 1].")
    estimate, truth = _pair(estimate, truth)
    error = _norm(estimate - truth) / math.sqrt(truth.size)
    return math.inf if error == 0 else 20 * (math.log10(peak) - math.log10(error))


def fme(estimated_factors: Sequence[ArrayLike], true_factors: Sequence[ArrayLike]) -> float:
    """Factor match error: how far the estimated factors are from the true ones, averaged over the modes.

    The mean of :func:`fme_per_mode`, between 0 (the same components up to order, sign and scale) and 1.

    Parameters
    ----------
    estimated_factors, true_factors : sequence of array_like
        One matrix per mode, of shapes (I_n, Q) and (I_n, R).

    Returns
    -------
    float
    """
    return float(fme_per_mode(estimated_factors, true_factors).mean())


def fme_per_mode(estimated_factors: Sequence[ArrayLike], true_factors: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Factor match error of every mode.

    Components are paired one to one, the same way in all modes, so that the sum of their similarities ``Π_n
    |cos(u_r⁽ⁿ⁾, v_q⁽ⁿ⁾)|`` is largest. Each paired column is then scaled by least squares, mode by mode, and the error
    is ``‖U⁽ⁿ⁾ - V⁽ⁿ⁾ P D⁽ⁿ⁾‖ / ‖U⁽ⁿ⁾‖``. Order, sign and magnitude of the components therefore do not matter. Surplus
    estimated components are ignored, and a true component without a partner counts as estimated by zero: the error can
    be small although the rank is too large.

    Parameters
    ----------
    estimated_factors, true_factors : sequence of array_like
        One matrix per mode, of shapes (I_n, Q) and (I_n, R).

    Returns
    -------
    ndarray of shape (order,)
        Each between 0 and 1.
    """
    from scipy.optimize import linear_sum_assignment

    estimated = _factor_matrices("estimated_factors", estimated_factors)
    true = _factor_matrices("true_factors", true_factors)
    estimated_shape, true_shape = [len(factor) for factor in estimated], [len(factor) for factor in true]
    if estimated_shape != true_shape:
        raise ValueError(
            f"estimated_factors have {estimated_shape} rows in their modes but true_factors have "
            f"{true_shape}. Pass the factors of two tensors of the same shape."
        )
    for mode, factor in enumerate(true):
        if not factor.any():
            raise ValueError(
                f"true_factors[{mode}], of shape {factor.shape}, has no column other than zero, so an error "
                "relative to it is undefined. Pass at least one true component."
            )
    directions = [(_unit_columns(u), _unit_columns(v)) for u, v in zip(true, estimated, strict=True)]
    similarity = np.prod([np.abs(u.T @ v) for u, v in directions], axis=0)
    matched, partner = linear_sum_assignment(similarity, maximize=True)
    errors = []
    for factor, (_, direction) in zip(true, directions, strict=True):
        residual = factor.copy()
        unit = direction[:, partner]
        residual[:, matched] -= unit * (unit * factor[:, matched]).sum(axis=0)
        errors.append(_norm(residual) / _norm(factor))
    return np.array(errors)


def f_measure(estimated_mask: ArrayLike, true_mask: ArrayLike, *, ignore: ArrayLike | None = None) -> float:
    """Agreement of two masks: the harmonic mean of precision and recall.

    ``2 TP / (2 TP + FP + FN)``: 1 if the masks are equal, even if both are empty; 0 if they are disjoint.

    Parameters
    ----------
    estimated_mask, true_mask : array_like of bool
        Two masks of the same shape; True marks what should be detected.
    ignore : array_like of bool, optional
        True where entries are not counted, such as a region whose truth is unknown.

    Returns
    -------
    float
    """
    estimated, true, keep = _boolean_masks(estimated_mask=estimated_mask, true_mask=true_mask, ignore=ignore)
    hits = np.count_nonzero(estimated & true & keep)
    misses = np.count_nonzero((estimated ^ true) & keep)
    return 1.0 if hits + misses == 0 else 2 * hits / (2 * hits + misses)


def best_f_measure(scores: ArrayLike, true_mask: ArrayLike, *, ignore: ArrayLike | None = None) -> tuple[float, float]:
    """The best F-measure that any threshold on the absolute scores could reach, and that threshold.

    ``max over t of f_measure(|scores| >= t, true_mask)``. The threshold is chosen using the truth, so this is an oracle
    value. Of several best thresholds the largest is returned; it is infinite if the true mask is empty.

    Parameters
    ----------
    scores : array_like
        Real scores, such as estimated outliers; only their absolute values matter.
    true_mask : array_like of bool
        Mask of the same shape; True marks what should be detected.
    ignore : array_like of bool, optional
        True where entries are not counted; scores may be NaN there.

    Returns
    -------
    f : float
    threshold : float
    """
    sizes = np.abs(np.asarray(scores, dtype=np.float64))
    true, keep = _boolean_masks(true_mask=true_mask, ignore=ignore)
    _check_same_shape(scores=sizes, true_mask=true)
    _check_none("scores", sizes, np.isnan(sizes) & keep, "not a number")
    sizes, true = sizes[keep], true[keep]
    n_true = np.count_nonzero(true)
    if n_true == 0:
        return 1.0, math.inf
    order = np.argsort(-sizes)
    sizes = sizes[order]
    n_marked = np.arange(1, sizes.size + 1)
    f = 2 * np.cumsum(true[order]) / (n_marked + n_true)
    # A threshold marks equal scores together: only the last of each run of equal scores is a possible cut.
    f[:-1][sizes[:-1] == sizes[1:]] = 0.0
    best = int(np.argmax(f))
    return float(f[best]), float(sizes[best])


def coverage(low: ArrayLike, high: ArrayLike, truth: ArrayLike) -> float:
    """The fraction of true values that lie within their intervals, both ends included.

    ``mean(low <= truth <= high)``. Well-calibrated intervals of level 0.95 cover about 0.95.

    Parameters
    ----------
    low, high : array_like
        Ends of the intervals; may be infinite.
    truth : array_like
        Of the same shape.

    Returns
    -------
    float
    """
    low, high, truth = (np.asarray(values, dtype=np.float64) for values in (low, high, truth))
    _check_same_shape(low=low, high=high, truth=truth)
    for name, values in (("low", low), ("high", high), ("truth", truth)):
        _check_none(name, values, np.isnan(values), "not a number")
    _check_none("low", low, low > high, "above high")
    return float(((low <= truth) & (truth <= high)).mean())


def _pair(estimate: ArrayLike, truth: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both tensors as float64, of the same shape and finite."""
    estimate, truth = np.asarray(estimate, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    _check_same_shape(estimate=estimate, truth=truth)
    _check_none("estimate", estimate, ~np.isfinite(estimate), "not finite")
    _check_none("truth", truth, ~np.isfinite(truth), "not finite")
    return estimate, truth


def _factor_matrices(name: str, factors: Sequence[ArrayLike]) -> list[NDArray[np.float64]]:
    """The factors as finite float64 matrices with equal numbers of columns."""
    matrices = [np.asarray(factor, dtype=np.float64) for factor in factors]
    shapes = [matrix.shape for matrix in matrices]
    if not shapes or any(len(shape) != 2 for shape in shapes) or len({shape[1] for shape in shapes}) != 1:
        raise ValueError(f"{name} have shapes {shapes}. Pass one matrix per mode, all with the same number of columns.")
    for mode, matrix in enumerate(matrices):
        _check_none(f"{name}[{mode}]", matrix, ~np.isfinite(matrix), "not finite")
    return matrices


def _boolean_masks(*, ignore: ArrayLike | None, **masks: ArrayLike) -> list[NDArray[np.bool_]]:
    """The masks, then the entries to keep, all boolean and of the same shape."""
    arrays = {name: np.asarray(mask) for name, mask in masks.items()}
    first = next(iter(arrays.values()))
    arrays["ignore"] = np.zeros(first.shape, dtype=bool) if ignore is None else np.asarray(ignore)
    for name, array in arrays.items():
        if array.dtype != np.bool_:
            raise TypeError(f"{name} must be boolean, got dtype {array.dtype}. Compare it with a threshold first.")
    _check_same_shape(**arrays)
    arrays["ignore"] = ~arrays["ignore"]
    return list(arrays.values())


def _check_same_shape(**arrays: NDArray[np.generic]) -> None:
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"shapes differ: {got}. Pass arrays of one shape.")
    if 0 in next(iter(shapes.values())):
        raise ValueError(f"{' and '.join(shapes)} hold no entry: shape {next(iter(shapes.values()))}.")


def _check_none(name: str, values: NDArray[np.float64], wrong: NDArray[np.bool_], what: str) -> None:
    """Raise if any values are wrong, naming the first of them and their number."""
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            f"{name}{list(index)} = {values[index]} is {what} ({np.count_nonzero(wrong)} in all). "
            "Leave such entries out or repair them first."
        )


def _norm(values: NDArray[np.float64]) -> float:
    """Frobenius norm, safe for values whose squares would overflow or underflow."""
    largest = float(np.abs(values).max(initial=0.0))
    return largest * float(np.linalg.norm(values / largest)) if largest > 0 else 0.0


def _unit_columns(factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns divided by their norms; a zero column stays zero."""
    largest = np.abs(factor).max(axis=0, initial=0.0)
    scaled = factor / np.where(largest > 0, largest, 1.0)
    norms = np.linalg.norm(scaled, axis=0)
    return np.asarray(scaled / np.where(norms > 0, norms, 1.0))
