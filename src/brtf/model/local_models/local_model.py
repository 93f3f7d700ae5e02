"""What every local model can do: the law of one entry's deviation, given the noise.

An entry's deviation y − x is noise, or noise plus an outlier (probability π). With everything local integrated out, its
share in the bound is ½(E ln τ − ln 2π) + ln f(ρ), ρ = τ̄ D: a function of one number. D = E[(y−x)²] when the outlier
may depend on the factors (collapsed, form 2); D = (y−x̄)² when it may not (form 1).

``f`` is a mixture of exponentials in ρ (but for the edge of a flat slab), so ln f is convex and its slope −w/2 gives
the entry's weight w in the factors' regression: weighting by w is an ascent of the bound.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

import numpy as np

from brtf.data.arrays import Array

PROBABILITY_RANGE = (1e-8, 0.98)
"""Where π may lie: at the ends the model is without outliers, or without entries that are none."""
OUTLIER_SHARES = (0.02, 0.2, 0.5, 0.75)
"""Shares of outliers from which optima are looked for."""


@dataclass(frozen=True, eq=False)
class LocalPosterior:
    """What the entries' local posteriors say; all (M,).

    Attributes
    ----------
    log_evidence : ln f(ρ)
    weight : w, the entry's weight in the regression of the factors
    outlier_probability : p
    slab_shrinkage : E[κ | outlier], the share of the deviation that noise keeps when the entry is an outlier
    """

    log_evidence: Array
    weight: Array
    outlier_probability: Array
    slab_shrinkage: Array


@dataclass(frozen=True, eq=False)
class Branch:
    """ln f of one branch, noise alone or with an outlier, and its derivatives; each of the shape of ρ.

    Attributes
    ----------
    log_evidence : ln f₀ or ln f₁
    by_log_rho : its derivative by ln ρ
    by_parameters : its derivatives by the parameters of the model after logit π
    """

    log_evidence: Array
    by_log_rho: Array
    by_parameters: tuple[Array | float, ...]


@dataclass(frozen=True, eq=False)
class LocalModel(ABC):
    """The law of y − x of one entry: noise, and with probability π an outlier as well; all in units of the noise.

    A model is a frozen dataclass with ``eq=False``. Its fields are the numbers that are learnt; in a file they stand by
    their names. :func:`register` makes it one of those among which the bound chooses.

    Attributes
    ----------
    probability : π, the share of outliers
    """

    probability: float
    description: ClassVar[str]
    """The law in a few words, for people."""
    is_gaussian: ClassVar[bool] = False
    """Whether ln f = −ρ/2: every entry has weight one, and the best τ is known in closed form."""
    pulls: ClassVar[bool] = True
    """Whether outliers still draw the fit towards them. Where they do not, entries that are only not yet explained
    would be held to be outliers for good."""

    @property
    def has_outliers(self) -> bool:
        """Whether an entry may be an outlier at all."""
        return self.probability > 0.0

    # ---- the parameters that are learnt ------------------------------------------------------------------------

    @property
    @abstractmethod
    def parameters(self) -> Array:
        """(K,) logit π and the others: where the numbers are free, and the bound is smooth up to their limits."""

    @classmethod
    @abstractmethod
    def from_parameters(cls, parameters: Array) -> Self:
        """The model with the given parameters."""

    @classmethod
    @abstractmethod
    def limits(cls) -> list[tuple[float, float]]:
        """The least and the largest value of each parameter."""

    @classmethod
    @abstractmethod
    def starts(cls, tau: float, quantile: Callable[[float], float]) -> list[Self]:
        """Models to look for optima from at a noise precision τ; ``quantile`` gives D by the share of smaller ones."""

    @classmethod
    @abstractmethod
    def resembling(cls, other: LocalModel) -> Self:
        """The model with as many outliers of the same size as another, and the same noise if it can have it."""

    @abstractmethod
    def rescaled(self, ratio: float) -> Self:
        """The model of the same outliers when the noise precision is multiplied by ``ratio``."""

    def reaching(self, rho: float) -> Self:
        """The model, widened where it must be for an entry of that ρ to be possible at all."""
        return self

    def clear_of(self, rho: float) -> Self:
        """The model, changed where a feature too sharp for its table lies at the largest ρ."""
        return self

    # ---- the law -----------------------------------------------------------------------------------------------

    @abstractmethod
    def branches(self, rho: Array) -> tuple[Array, Array | float, Array, Array]:
        """ln f of the noise alone and its weight; ln f with an outlier and the share κ that noise keeps."""

    @abstractmethod
    def branch_gradients(self, rho: Array) -> tuple[Branch, Branch]:
        """ln f of the noise alone, and with an outlier, with their derivatives."""

    @abstractmethod
    def mixture(self) -> tuple[Array, Array, Array, Array]:
        """The law of y − x as a mixture: weights, degrees of freedom, squared scales, reach of a uniform part.

        In units of the noise: squared scales of 1/τ̄, reach of τ̄^{−1/2}. The first component is the noise alone.
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
        """The ρ at which ln f falls over a share ρ^{−1/2} of it, if there is one: tables are finer there."""
        return None

    # ---- what follows from the branches ------------------------------------------------------------------------

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
        """The model where the slab's density is multiplied by a factor, and ln of what its f must be multiplied with.

        (1 − π) f₀ + π c f₁ = (1 − π + π c) ((1 − π') f₀ + π' f₁).
        """
        if not log_factor:
            return self, 0.0
        outlying = self.probability * math.exp(log_factor)
        total = 1.0 - self.probability + outlying
        return replace(self, probability=outlying / total), math.log(total)


Kind = TypeVar("Kind", bound=LocalModel)
LOCAL_MODELS: dict[str, type[LocalModel]] = {}
"""All local models by name, as files name them."""


def register(kind: type[Kind]) -> type[Kind]:
    """Add a local model to those that files may name and among which the bound chooses; use it as a decorator."""
    if kind.__name__ in LOCAL_MODELS:
        raise ValueError(f"There is a local model of the name {kind.__name__!r} already: give this one another.")
    LOCAL_MODELS[kind.__name__] = kind
    return kind


def rivals(model: LocalModel) -> list[type[LocalModel]]:
    """The local models that the bound may choose instead; none where the model is without outliers on purpose."""
    if not model.has_outliers:
        return []
    return [kind for kind in LOCAL_MODELS.values() if kind is not type(model) and not kind.is_gaussian]
