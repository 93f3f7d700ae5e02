"""Links t of the data: the model is fitted to t(Y), and results are returned in the units of Y.

A link is for data whose noise grows with their level: ``"sqrt"`` for counts and flows, ``"log"`` for data that vary by
factors, ``"log1p"`` for the same with zeros. With ``link="auto"`` the bound chooses. The model is then
Y = t⁻¹(X + S + noise). Its density is that of t(Y) times |dt/dy|, so bounds and scores of different links are
comparable on the same data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.checks import count_of, place_of
from brtf.data.observations import Observations
from brtf.data.scale import robust_scale
from brtf.model.predictive import ErrorLaw

Values = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Link:
    """The identity link t(y) = y, and the base class of the others.

    Attributes
    ----------
    name : the option's value
    domain : the values it takes, in words
    mirrored : whether z and −z map to the same y
    step : step δ to which the data were rounded, where that counts beside the noise; 0 elsewhere. A value then stands
        for all that round to it, t(y ± δ/2): the model is fitted to the middle of that interval, and its length is
        counted as variance and in place of the slope
    """

    name: ClassVar[str | None] = None
    domain: ClassVar[str] = "any value"
    mirrored: ClassVar[bool] = False
    step: float = field(default=0.0, kw_only=True)

    @classmethod
    def for_data(cls, values: Values, step: float = 0.0) -> Link:
        """The link with its data-dependent parameters set from the fitted data."""
        return cls(step=step)

    def allows(self, values: Values) -> NDArray[np.bool_]:
        """Mask of the values inside the domain."""
        return np.ones(values.shape, dtype=np.bool_)

    def forward(self, values: Values) -> Values:
        """z = t(y), of the type of y."""
        return values

    def inverse(self, modelled: Array) -> Array:
        """y = t⁻¹(z); infinite on overflow."""
        return modelled

    def log_jacobian(self, values: Values) -> Array:
        """ln |dt/dy| at each value; of rounded data the mean slope over what rounds to it."""
        if self.step:
            return np.asarray(np.log(self.widths(self.modelled(values)) / self.step))
        return self.log_slope(values)

    def log_slope(self, values: Values) -> Array:
        """ln |dt/dy| at each value."""
        return np.zeros(values.shape)

    def modelled(self, values: Values) -> Values:
        """What the model is fitted to: z = t(y), or the middle of t(y ± δ/2)."""
        if not self.step or self.name is None:
            return self.forward(values)
        half = values.dtype.type(0.5 * self.step)
        middle: Values = 0.5 * (self.forward(values - half) + self.forward(values + half))
        return middle

    def widths(self, modelled: Values) -> Array:
        """C34: lengths b − a of the intervals (a, b) = t(y ± δ/2) that have the given middles."""
        return np.full(modelled.shape, self.step)

    def bound_shift(self, observations: Observations) -> float:
        """Σ ln |dt/dy| − M ln(scale): add it to the bound of the scaled t(Y) to get the bound of the data."""
        jacobian = 0.0
        if self.name is not None:
            jacobian = math.fsum(float(self.log_jacobian(block.values).sum()) for block in observations.block_list)
        return jacobian - observations.n_observed * float(np.log(observations.scale))

    def mean(self, centre: Array, std: Array) -> Array:
        """Mean of t⁻¹(x) for x ~ N(centre, std²)."""
        return centre

    def std(self, centre: Array, std: Array) -> Array:
        """Standard deviation of t⁻¹(x) for x ~ N(centre, std²)."""
        return std

    def observation_std(self, law: ErrorLaw, centre: Array, variance: Array, scale: Array | float) -> Array:
        """Standard deviation of y = t⁻¹(z), with z − centre from the error law; infinite where it does not exist.

        Centre, variance and law are in units of scale.
        """
        return law.std(variance) * scale

    def outliers(self, values: Values, shift: Array) -> Array:
        """The outlier in y for one of size ``shift`` in z: y − t⁻¹(t(y) − shift); exactly 0 where shift is 0."""
        return shift

    def interval(self, low: Array, high: Array) -> tuple[Array, Array]:
        """(low, high) of y where z lies between the given ends.

        A monotone t⁻¹ preserves quantiles. A mirrored one is monotone in |z|: the coverage of y is then at least that
        of z, and equal to it where zero is far from the interval.
        """
        if self.mirrored:
            flipped = low + high < 0.0
            low, high = np.where(flipped, -high, low), np.where(flipped, -low, high)
            low = np.maximum(low, 0.0)
        return self.inverse(low), self.inverse(high)

    def check(self, observations: Observations) -> None:
        """Raise a ValueError if an observed value is outside the domain."""
        if self.name is None:
            return
        outside = ~self.allows(observations.values).ravel()
        if outside.any():
            first = int(outside.argmax())
            index = observations.entry_coords()[:, first]
            raise ValueError(
                f"Y{place_of(index, observations.labels)} is {observations.values.ravel()[first]}, but "
                f"link={self.name!r} needs {self.domain} "
                f"({count_of(np.count_nonzero(outside), 'such entry', 'such entries')} in all). "
                "Mark them missing: pass mask=, or set them to NaN; or fit without a link."
            )

    def apply(self, observations: Observations) -> Observations:
        """Check the observations and transform them to t(Y), with a new scale; the identity keeps both."""
        rounding = self if self.step else None
        if self.name is None:
            return observations if rounding is None else replace(observations, rounding=rounding)
        self.check(observations)
        modelled = self.modelled(observations.values)
        modelled.flags.writeable = False
        return replace(observations, values=modelled, scale=robust_scale(modelled), rounding=rounding)


IDENTITY = Link()
"""t(y) = y."""


@dataclass(frozen=True)
class NonNegativeLink(Link):
    """A link of values of at least 0 that depends on the smallest positive value of the fitted data."""

    smallest: float = 1.0
    domain = "values of at least 0"

    @classmethod
    def for_data(cls, values: Values, step: float = 0.0) -> Link:
        """The link of these data; ``smallest`` is 1 where no value is positive."""
        smallest = float(np.min(values, initial=np.inf, where=values > 0))
        return cls(smallest if np.isfinite(smallest) else 1.0, step=step)

    def allows(self, values: Values) -> NDArray[np.bool_]:
        return np.asarray(values >= 0)


@dataclass(frozen=True)
class SquareRoot(NonNegativeLink):
    """t(y) = √y for y ≥ 0: the model is Y = z² with z = X + S + noise of either sign.

    The density of y is [p(√y) + p(−√y)] / (2√y). The bound keeps the first term only, which dominates unless zero
    is within reach of the noise, and so is still a lower bound of ln p(Y). The density is infinite at zero: an observed
    zero counts as the smallest positive value of the fitted data, ``smallest``.
    """

    name = "sqrt"
    mirrored = True

    def forward(self, values: Values) -> Values:
        return np.sqrt(values)

    def modelled(self, values: Values) -> Values:
        """√y, or the middle; what rounds to zero has roots of either sign."""
        if not self.step:
            return self.forward(values)
        zero = values < 0.5 * self.step
        return np.where(zero, values.dtype.type(0.0), super().modelled(np.where(zero, self.step, values)))

    def widths(self, modelled: Values) -> Array:
        positive = modelled > 0
        return np.where(positive, 0.5 * self.step / np.where(positive, modelled, 1.0), math.sqrt(2.0 * self.step))

    def inverse(self, modelled: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.square(modelled)

    def log_slope(self, values: Values) -> Array:
        positive = np.where(values > 0, values.astype(np.float64), self.smallest)
        return -np.log(2.0) - 0.5 * np.log(positive)

    def mean(self, centre: Array, std: Array) -> Array:
        return self.inverse(np.hypot(centre, std))

    def std(self, centre: Array, std: Array) -> Array:
        """(2σ⁴ + 4x̄²σ²)^{1/2}."""
        return std * np.hypot(np.sqrt(2.0) * std, 2.0 * centre)

    def observation_std(self, law: ErrorLaw, centre: Array, variance: Array, scale: Array | float) -> Array:
        """(4 x̄² (m₂ − m₁²) + 4 x̄ (m₃ − m₁ m₂) + m₄ − m₂²)^{1/2} from the law's moments.

        Infinite for four or fewer degrees of freedom.
        """
        fourth = fourth_moment(law, variance)
        if not np.isfinite(fourth).all():
            return fourth
        first, third, spread = law.odd_moment(1, variance), law.odd_moment(3, variance), law.std(variance) ** 2
        second = spread + first**2
        skew = 4.0 * centre * (third - first * second)
        return np.sqrt(4.0 * centre**2 * spread + skew + (fourth - second**2)) * scale**2

    def outliers(self, values: Values, shift: Array) -> Array:
        return shift * (2.0 * np.sqrt(values.astype(np.float64)) - shift)


@dataclass(frozen=True)
class Logarithm(Link):
    """t(y) = ln y for y > 0: the model is Y = e^z with z = X + S + noise."""

    name = "log"
    domain = "values above 0"

    def allows(self, values: Values) -> NDArray[np.bool_]:
        return np.asarray(values > 0)

    def forward(self, values: Values) -> Values:
        return np.log(values)

    def widths(self, modelled: Values) -> Array:
        return np.asarray(2.0 * np.arcsinh(0.5 * self.step * np.exp(-modelled)))

    def inverse(self, modelled: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.exp(modelled)

    def log_slope(self, values: Values) -> Array:
        return -np.log(values.astype(np.float64))

    def mean(self, centre: Array, std: Array) -> Array:
        """e^{x̄ + σ²/2}."""
        return self.inverse(centre + 0.5 * std**2)

    def std(self, centre: Array, std: Array) -> Array:
        """e^{x̄ + σ²/2} (e^{σ²} − 1)^{1/2}, arranged so that no intermediate result overflows before the answer."""
        return self.inverse(centre + std**2) * np.sqrt(-np.expm1(-(std**2)))

    def observation_std(self, law: ErrorLaw, centre: Array, variance: Array, scale: Array | float) -> Array:
        """Infinite: with a learnt precision the predictive of z has Student-t tails, so e^z has no mean.

        Its quantiles exist: :meth:`interval`.
        """
        return np.full_like(variance, np.inf)

    def outliers(self, values: Values, shift: Array) -> Array:
        with np.errstate(over="ignore"):
            return -values.astype(np.float64) * np.expm1(-shift)


@dataclass(frozen=True)
class ShiftedLogarithm(NonNegativeLink, Logarithm):
    """t(y) = ln(1 + y/c) for y ≥ 0, c the smallest positive value of the fitted data: ``"log"`` where zeros occur.

    For counts from 1 it is log1p. Answers near zero may be negative, but not below −c.
    """

    name = "log1p"

    def forward(self, values: Values) -> Values:
        return np.log1p(values / values.dtype.type(self.smallest))

    def widths(self, modelled: Values) -> Array:
        return np.asarray(2.0 * np.arcsinh(0.5 * self.step / self.smallest * np.exp(-modelled)))

    def inverse(self, modelled: Array) -> Array:
        with np.errstate(over="ignore"):
            return self.smallest * np.expm1(modelled)

    def log_slope(self, values: Values) -> Array:
        return -np.log(values.astype(np.float64) + self.smallest)

    def std(self, centre: Array, std: Array) -> Array:
        """c e^{x̄ + σ²/2} (e^{σ²} − 1)^{1/2}, as for the logarithm."""
        return self.smallest * Logarithm().std(centre, std)

    def outliers(self, values: Values, shift: Array) -> Array:
        with np.errstate(over="ignore"):
            return -(values.astype(np.float64) + self.smallest) * np.expm1(-shift)


LINKS: dict[str | None, type[Link]] = {kind.name: kind for kind in (Link, SquareRoot, Logarithm, ShiftedLogarithm)}
"""The links by the option's value."""


def link_named(name: str | None, observations: Observations, step: float) -> Link:
    """The link of that name for these observations; raises if they are outside its domain."""
    LINKS[name]().check(observations)
    return LINKS[name].for_data(observations.values, step)


def possible_links(observations: Observations, step: float = 0.0) -> list[Link]:
    """The identity, and the links that the data allow: the square root, and a logarithm, if no value is negative.

    The logarithm is that of y, or of 1 + y/c where zeros occur. Constant data need none.
    """
    plain: list[Link] = [IDENTITY.for_data(observations.values, step)]
    values = observations.values
    if not (values.min() >= 0 and values.max() > values.min()):
        return plain
    logarithm = Logarithm if values.min() > 0 else ShiftedLogarithm
    return plain + [kind.for_data(values, step) for kind in (SquareRoot, logarithm)]


def fourth_moment(law: ErrorLaw, variance: Array) -> Array:
    """E[(z − x̄)⁴] at each entry; infinite where a component has four or fewer degrees of freedom.

    Of a Student-t: 3 ν² s⁴ / ((ν−2)(ν−4)); of a uniform law on ±h plus a Gaussian: h⁴/5 + 2h²s² + 3s⁴.
    """
    total = np.zeros_like(variance)
    for weight, dof, scale_sq, reach in zip(law.weight, law.dof, law.scale_sq, law.reach, strict=True):
        if weight > 0:
            square = scale_sq + variance
            if reach > 0:
                total = total + weight * (reach**4 / 5.0 + 2.0 * reach**2 * square + 3.0 * square**2)
            elif dof > 4:
                total = total + weight * 3.0 * square**2 * (dof / (dof - 2.0)) * (dof / (dof - 4.0))
            else:
                return np.full_like(variance, np.inf)
    return total
