"""A way to read the data: a link of the values and an arrangement of the modes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from brtf.data.arrangement import Arrangement, as_text
from brtf.data.observations import Observations
from brtf.data.periods import FEWEST_CYCLES, suggested_periods
from brtf.data.times import check_times
from brtf.inference.rounding import coarse_step
from brtf.model.links import Link, link_named
from brtf.model.settings import Settings

FAR_APART = 1e8
"""Ratio of the largest to the typical size from which squares of the largest entries swamp the others in float64."""


@dataclass(frozen=True)
class Reading:
    """A way to read the data: a link t of the values, an arrangement of the modes, and where the settings leave it
    open, whether a smooth residual stands beside the low-rank part."""

    link: Link
    arrangement: Arrangement
    smooth: bool = False

    def apply(self, observations: Observations) -> Observations:
        """The data as the search sees them: t(Y), with merged or folded modes."""
        return self.arrangement.apply(self.link.apply(observations))

    def settings(self, settings: Settings) -> Settings:
        """The settings of a search that sees them, with the modes as read.

        Outliers of folded modes are added, each on its own: shared along half of a mode they would have no name.
        """
        noise, outliers = (
            None if modes is None else self.arrangement.factor_numbers(modes)
            for modes in _named_modes(settings, self.arrangement.order)
        )
        smooth = settings.smooth_residual
        if smooth not in (None, "auto"):
            (smooth,) = self.arrangement.factor_numbers((int(smooth) % self.arrangement.order,))
        elif not self.smooth:
            smooth = None
        kind = "additive" if self.arrangement.periods and settings.outlier_kind == "auto" else settings.outlier_kind
        modes = settings.modes
        if modes not in (None, "auto"):
            said = settings.said_of_modes(self.arrangement.order)
            factors = ((self.arrangement.factor_numbers((mode,)), words) for mode, words in said.items())
            modes = tuple((factor, words) for numbers, words in factors for factor in numbers)
        changed = {
            "outlier_kind": kind,
            "modes": modes,
            "noise_modes": noise,
            "outlier_modes": outliers,
        }
        if settings.outlier_labels is not None:
            changed["outlier_labels"] = self.arrangement.read(settings.outlier_labels)
        return replace(settings, link=self.link.name, arrangement=None, smooth_residual=smooth, **changed)


def given_reading(observations: Observations, settings: Settings) -> Reading:
    """The reading that the settings ask for; "auto" as if nothing were to be chosen. Raises where it is impossible."""
    order = observations.order
    settings.noise_candidates(observations.shape, observations.n_observed)
    settings.shared_modes(order)
    settings.check_outlier_labels(observations.shape)
    settings.said_of_modes(order)
    settings.smooth_modes(observations.shape)
    _check_times(observations, settings)
    step = coarse_step(observations) if settings.inference == "calibrated" else 0.0
    link = link_named(None if settings.link == "auto" else settings.link, observations, step)
    if settings.arrangement in (None, "auto"):
        return Reading(link, Arrangement.as_given(order))
    if isinstance(settings.arrangement, dict):
        arrangement = Arrangement.folded(settings.arrangement, observations.shape)
    else:
        arrangement = Arrangement.checked(settings.arrangement, order)
    for said, modes in kept_modes(settings, order):
        if not arrangement.keeps(modes):
            raise ValueError(
                f"{said} does not go with arrangement={as_text(arrangement.groups)}, which "
                "merges one of these modes with another. Name all modes of a group, or none."
            )
    if not arrangement.leaves(smooth_mode_of(settings, order)):
        raise ValueError(
            f"smooth_residual={settings.smooth_residual} needs its mode as it is, but arrangement={arrangement} "
            "merges or folds it."
        )
    if not arrangement.is_as_given and settings.inference == "paper":
        raise ValueError('arrangement needs inference="calibrated": the paper factorizes the tensor as it is.')
    if not arrangement.is_as_given and not isinstance(settings.init, str):
        raise ValueError("arrangement cannot merge or fold modes where init gives their factors.")
    return Reading(link, arrangement)


def _check_times(observations: Observations, settings: Settings) -> None:
    """Raise if a mode is said to be in order, or to have smooth courses, but its times are in none."""
    said, smooth = settings.said_of_modes(observations.order), smooth_mode_of(settings, observations.order)
    for mode in range(observations.order):
        if observations.labels is not None and (mode == smooth or {"ordered", "cyclic"} & set(said.get(mode, ()))):
            check_times(observations.labels.coords[mode], mode)


def possible_folds(observations: Observations) -> list[Arrangement]:
    """The data with one mode folded by a period that time stamps or the spectrum suggest."""
    return [
        Arrangement.folded({mode: period}, observations.shape)
        for mode in range(observations.order)
        for period in suggested_periods(observations, mode)
    ]


def doubled(arrangement: Arrangement, shape: tuple[int, ...]) -> list[Arrangement]:
    """The arrangement with its one folded mode folded by twice the period: weak first harmonics leave no line."""
    return [
        Arrangement.folded({mode: 2 * period}, shape)
        for mode, period in arrangement.folds
        if 2 * period * FEWEST_CYCLES <= shape[mode]
    ]


def _named_modes(settings: Settings, order: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The modes that the settings name for the noise and for the outliers, counted from the front."""
    noise_modes = (0,) if settings.noise == "per-slice" and settings.noise_modes is None else settings.noise_modes
    noise, outliers = (
        None if modes is None else tuple(int(mode) % order for mode in modes)
        for modes in (noise_modes, settings.outlier_modes)
    )
    return noise, outliers


def kept_modes(settings: Settings, order: int) -> list[tuple[str, tuple[int, ...]]]:
    """Sets of modes that must stay whole groups, each with the option that names them, in words."""
    named = zip(("noise_modes", "outlier_modes"), _named_modes(settings, order), strict=True)
    kept = [(f"{name}={getattr(settings, name)}", modes) for name, modes in named if modes is not None]
    if settings.outlier_labels is not None:
        kept.append((f"outlier_labels of shape {settings.outlier_labels.shape}", settings.labelled_modes))
    return kept + [(f"modes={settings.modes}", (mode,)) for mode in settings.said_of_modes(order)]


def smooth_mode_of(settings: Settings, order: int) -> int | None:
    """The mode that the settings name for a smooth residual, counted from the front."""
    return None if settings.smooth_residual in (None, "auto") else int(settings.smooth_residual) % order
