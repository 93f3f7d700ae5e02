"""The interface of local models: the distribution of one entry's deviation, given the noise.

An entry's deviation y − x is noise, or noise plus an outlier (probability π). With all local variables integrated out,
its share in the bound is ½(E ln τ − ln 2π) + ln f(ρ), ρ = τ̄ D: a function of one number. D = E[(y−x)²] if the outlier
may depend on the factors (collapsed, form 2); D = (y−x̄)² if it may not (form 1).

``f`` is a mixture of exponentials in ρ (except at the edge of a flat slab), so ln f is convex and its slope −w/2 gives
the entry's weight w in the regression for the factors: a regression with weights w cannot lower the bound.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels.arguments import StudentNumbers

PROBABILITY_RANGE = (1e-8, 0.98)
"""Range of π: at its ends the model has no outliers, or no regular entries."""
MINORITY = 9.0
"""Prior π ~ Beta(1, 10): outliers are rare unless the data show otherwise; it costs 8 nats at π = .6. Without it, data
free of outliers could be fitted equally well by the narrowest slab with π near one."""
OUTLIER_SHARES = (0.02, 0.2, 0.5, 0.75)
"""Shares of outliers at which the optimization starts."""


@dataclass(frozen=True, eq=False)
class LocalPosterior:
    """Local posteriors of the entries; all (M,).

    Attributes
    ----------
    log_evidence : ln f(ρ)
    weight : w, the entry's weight in the regression of the factors
    outlier_probability : p
    slab_shrinkage : E[κ | outlier], the share of the deviation attributed to noise if the entry is an outlier
    """

    log_evidence: Array
    weight: Array
    outlier_probability: Array
    slab_shrinkage: Array


@dataclass(frozen=True, eq=False)
class Branch:
    """ln f of one branch, noise alone or noise plus outlier, and its derivatives; each of the shape of ρ.

    Attributes
    ----------
    log_evidence : ln f₀ or ln f₁
    by_log_rho : its derivative by ln ρ
    by_parameters : its derivatives by the parameters of the model after logit π
    """

    log_evidence: Array
    by_log_rho: Array
    by_parameters: tuple[Array | float, ...]


def rate_log_prior(rate: float) -> float:
    """ln of the prior density of a share of outliers over that of none, 9 ln(1 − π)."""
    return MINORITY * math.log1p(-rate)


@dataclass(frozen=True, eq=False)
class LocalModel(ABC):
    """Distribution of y − x at one entry, in units of the noise: noise, plus an outlier with probability π.

    A model is a frozen dataclass with ``eq=False``. Its fields are the learnt parameters; files store them by name.
    :func:`register` adds it to the models that the search proposes.

    Attributes
    ----------
    probability : π, the share of outliers
    """

    probability: float
    description: ClassVar[str]
    """A short description for reports."""
    is_gaussian: ClassVar[bool] = False
    """Whether ln f = −ρ/2: every entry has weight one, and the optimal τ has a closed form."""
    pulls: ClassVar[bool] = True
    """Whether outliers keep a positive weight in the regression. If not, entries that are merely not yet explained
    would stay outliers for good."""

    @property
    def has_outliers(self) -> bool:
        """Whether an entry may be an outlier at all."""
        return self.probability > 0.0

    @property
    def log_prior(self) -> float:
        """ln of the prior density of π over that of no outliers, 9 ln(1 − π)."""
        return rate_log_prior(self.probability)

    # ---- learnt parameters -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def parameters(self) -> Array:
        """(K,) logit π and the others, in coordinates in which the bound is smooth up to the limits."""

    @classmethod
    @abstractmethod
    def from_parameters(cls, parameters: Array) -> Self:
        """The model with the given parameters."""

    @classmethod
    @abstractmethod
    def limits(cls) -> list[tuple[float, float]]:
        """Lower and upper limit of each parameter."""

    @classmethod
    @abstractmethod
    def starts(cls, tau: float, quantile: Callable[[float], float]) -> list[Self]:
        """Starting models for the optimization at noise precision τ; ``quantile`` maps a share to the quantile of D."""

    @classmethod
    @abstractmethod
    def resembling(cls, other: LocalModel) -> Self:
        """The model closest to another: same share and size of outliers, and the same noise if it can represent it."""

    @abstractmethod
    def rescaled(self, ratio: float) -> Self:
        """The model of the same outliers when the noise precision is multiplied by ``ratio``."""

    def reaching(self, rho: float) -> Self:
        """The model, widened if needed so that an entry of that ρ has positive density."""
        return self

    def clear_of(self, rho: float) -> Self:
        """The model, adjusted where a feature too sharp for the table lies at the largest ρ."""
        return self

    # ---- the distribution --------------------------------------------------------------------------------------

    @abstractmethod
    def branches(self, rho: Array) -> tuple[Array, Array | float, Array, Array]:
        """ln f and weight of noise alone; ln f with an outlier, and the share κ attributed to noise."""

    @abstractmethod
    def branch_gradients(self, rho: Array) -> tuple[Branch, Branch]:
        """ln f of noise alone and ln f with an outlier, each with its derivatives."""

    @abstractmethod
    def mixture(self) -> tuple[Array, Array, Array, Array]:
        """y − x as a mixture: weights, degrees of freedom, squared scales, half widths of uniform parts.

        Squared scales are in units of 1/τ̄, half widths of τ̄^{−1/2}. The first component is noise alone.
        """

    @property
    @abstractmethod
    def outlier_scale_sq(self) -> float:
        """The squared scale of the outliers, in units of the noise."""

    @property
    def noise_dof(self) -> float:
        """Degrees of freedom of the noise; infinite where it is Gaussian."""
        return math.inf

    @property
    def noise_inflation(self) -> float:
        """Variance of the noise in units of 1/τ̄."""
        return 1.0 if math.isinf(self.noise_dof) else self.noise_dof / (self.noise_dof - 2.0)

    @property
    def largest_weight(self) -> float:
        """w_max, the largest weight an entry can have."""
        return 1.0 if math.isinf(self.noise_dof) else (self.noise_dof + 1.0) / self.noise_dof

    @property
    def largest_weight_gradient(self) -> Array:
        """(K,) derivatives of w_max by the parameters."""
        return np.zeros(self.parameters.size)

    @property
    def edge(self) -> float | None:
        """The ρ of a sharp edge, where ln f drops within a relative width ρ^{−1/2}, if any; tables are finer there."""
        return None

    @property
    def student_numbers(self) -> StudentNumbers | None:
        """The model as the kernels know it, if they have a loop for its derivatives."""
        return None

    # ---- derived from the branches -----------------------------------------------------------------------------

    def posterior(self, rho: Array) -> LocalPosterior:
        """C1: the local posterior of entries with ρ = τ̄ D."""
        log_spike, spike_weight, log_slab, slab_shrinkage = self.branches(rho)
        log_spike = log_spike + np.log1p(-self.probability)
        log_slab = log_slab + np.log(self.probability)
        odds = log_slab - log_spike
        small = np.exp(-np.abs(odds))
        log_evidence = np.maximum(log_spike, log_slab) + np.log1p(small)
        likely, unlikely = 1.0 / (1.0 + small), small / (1.0 + small)
        outlier, inlier = np.where(odds > 0.0, (likely, unlikely), (unlikely, likely))
        weight = inlier * spike_weight + outlier * slab_shrinkage
        return LocalPosterior(log_evidence, weight, outlier, slab_shrinkage)

    def gradient(self, rho: Array) -> tuple[Array, ...]:
        """ln f, and its derivatives by ln ρ and by each of the K parameters; each of the shape of ρ."""
        spike, slab = self.branch_gradients(rho)
        log_spike = spike.log_evidence + np.log1p(-self.probability)
        log_slab = slab.log_evidence + np.log(self.probability)
        log_evidence = np.logaddexp(log_spike, log_slab)
        outlier = np.exp(log_slab - log_evidence)
        inlier = 1.0 - outlier
        pairs = zip(spike.by_parameters, slab.by_parameters, strict=True)
        return (
            log_evidence,
            inlier * spike.by_log_rho + outlier * slab.by_log_rho,
            outlier - self.probability,
            *(inlier * by_spike + outlier * by_slab for by_spike, by_slab in pairs),
        )

    def on_side(self, log_factor: float) -> tuple[Self, float]:
        """The model on a side where the slab's density is multiplied by a factor c, and ln of the factor of its f.

        (1 − π) f₀ + π c f₁ = (1 − π + π c) ((1 − π') f₀ + π' f₁).
        """
        if not log_factor:
            return self, 0.0
        outlying = self.probability * math.exp(log_factor)
        total = 1.0 - self.probability + outlying
        return replace(self, probability=outlying / total), math.log(total)


Kind = TypeVar("Kind", bound=LocalModel)
LOCAL_MODELS: dict[str, type[LocalModel]] = {}
"""All local models by the name used in files."""


def register(kind: type[Kind]) -> type[Kind]:
    """Class decorator: register a local model, so that files may name it and the search may propose it."""
    if kind.__name__ in LOCAL_MODELS:
        raise ValueError(f"There is a local model of the name {kind.__name__!r} already: give this one another.")
    LOCAL_MODELS[kind.__name__] = kind
    return kind


def rivals(model: LocalModel) -> list[type[LocalModel]]:
    """The alternative local models; empty for a model that has no outliers by choice."""
    if not model.has_outliers:
        return []
    return [kind for kind in LOCAL_MODELS.values() if kind is not type(model) and not kind.is_gaussian]
