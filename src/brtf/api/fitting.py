"""From observations and settings to a result: checks, link, search, progress bar, checkpoints, diagnosis."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brtf import __version__
from brtf.api.last_word import has_the_last_word, last_word
from brtf.api.progress import Show, progress_bar
from brtf.api.sklearn_compat import check_like_fitted
from brtf.data.arrays import Array
from brtf.data.checks import count_of
from brtf.data.executors import executing
from brtf.data.memory import check_memory
from brtf.data.observations import Observations, warn_empty_slices
from brtf.data.observe import observe
from brtf.data.passes import count_workers
from brtf.data.positions import joined, steps_onward
from brtf.data.scatter import without_scatter
from brtf.data.times import check_times
from brtf.inference.trace import Record, StopReason
from brtf.io.archive import pack_labels, pack_reading
from brtf.io.archived_data import pack_outline
from brtf.io.checkpoint import Checkpoint, Keeper
from brtf.model.settings import Settings
from brtf.results.diagnosis import diagnose
from brtf.results.result import Result
from brtf.search.choices import Chosen, choose
from brtf.search.fold_in import fold_in, typical_rows
from brtf.search.memory import affordable_rank, fit_bytes
from brtf.search.moment import Deadline, Moment, Outcome
from brtf.search.reading import FAR_APART, given_reading
from brtf.search.run import AlteredState, ended, run
from brtf.search.streaming import absorb, place_last

FEWEST_HELD_BACK = 20
"""With fewer than 19 calibration entries an interval of level 0.95 would be infinite."""


def fit(
    observations: Observations,
    settings: Settings,
    rng: np.random.Generator,
    *,
    progress: str | None,
    earlier: Checkpoint | None,
    keeper: Keeper | None,
    rescue: Callable[[Result], None],
) -> Result:
    """Fit the model to the observations, or resume from a checkpoint; the keeper receives every moment of the run.

    ``progress`` is the label of the progress bar; None for no bar. If the fit is interrupted, ``rescue`` receives the
    best result so far, if there is one, before ``KeyboardInterrupt`` is raised.
    """
    if observations.in_chunks:
        _check_chunked(settings)
    observations = without_scatter(observations, settings.scatter)
    given_reading(observations, settings)  # raises where the settings do not go with the data
    held_back = None
    if settings.calibrate is not None:
        observations, held_back = _hold_back(observations, rng)
    warn_empty_slices(observations)
    _check_fit_memory(observations, settings)
    with progress_bar(progress, settings.max_sweeps, settings.max_seconds) as show:
        return Fitting(observations, held_back, settings, rng, show, earlier, keeper, rescue).run()


@dataclass(eq=False)
class Fitting:
    """One fit: how the data are read is chosen, the inference is run, and what it found is wrapped.

    Attributes
    ----------
    observations, held_back : the entries to fit, and those to calibrate the intervals by
    settings, rng
    show, earlier, keeper, rescue : see :func:`fit`; ``show`` is the progress bar
    latest : the last moment of the run
    """

    observations: Observations
    held_back: Observations | None
    settings: Settings
    rng: np.random.Generator
    show: Show
    earlier: Checkpoint | None
    keeper: Keeper | None
    rescue: Callable[[Result], None]
    latest: Moment | None = None

    def __post_init__(self) -> None:
        self.started = time.perf_counter() - (0.0 if self.earlier is None else self.earlier.seconds)
        self.deadline = Deadline(self.settings.max_seconds)

    def run(self) -> Result:
        """The result of the whole fit."""
        resumed = self.earlier if self.earlier is not None and self.earlier.is_decided else None
        chosen = self._choose() if resumed is None else resumed.chosen()
        modelled = chosen.reading.apply(self.observations)
        self.observations = replace(self.observations, scale=modelled.scale)
        self.latest = chosen.since if resumed is None else resumed.moment(modelled)
        settings = replace(chosen.reading.settings(self.settings), max_seconds=self.deadline.left)
        self._outline(chosen)
        try:
            found = self._result(chosen, self._search(chosen, modelled, settings))
            return self._with_last_word(found, settings) if has_the_last_word(found) else found
        except AlteredState as error:
            if self.earlier is None:
                raise
            raise ValueError(f"{self.earlier.path} cannot be resumed. {error}") from error
        except KeyboardInterrupt as interrupt:
            if self.latest is not None and self.latest.state is not None:
                best = ended(modelled, settings, self.latest, StopReason.INTERRUPTED)
                self.rescue(self._result(chosen, best))
                n_sweeps = count_of(self.latest.n_sweeps, "sweep", "sweeps")
                interrupt.add_note(f"The model keeps the best of {n_sweeps}: rank {best.state.rank}, not converged.")
            raise

    def _choose(self) -> Chosen:
        """How the data are read, in at most half of the time."""

        def watch(moment: Moment) -> None:
            self.show(moment.n_sweeps, moment.latest, stage="trials of links and arrangements")

        limit = self.settings.max_seconds
        return choose(self.observations, self.settings, self.rng, None if limit is None else 0.5 * limit, watch)

    def _outline(self, chosen: Chosen) -> None:
        """Tell the keeper what a checkpoint says of the data and of how they are read."""
        if self.keeper is None:
            return
        header, arrays = self.keeper.outline
        header["undecided"] = chosen.interrupt is not None
        pack_outline(self.observations, header, arrays)
        pack_labels(self.settings, arrays)
        pack_reading(chosen.reading, chosen.comparisons, header)
        header["bound_shift"] = chosen.reading.link.bound_shift(self.observations)

    def _search(self, chosen: Chosen, modelled: Observations, settings: Settings) -> Outcome:
        """Run the inference from the latest moment; an interrupted choice ends here, with what it has kept."""
        with self.keeper or nullcontext() as keep:

            def watch(moment: Moment) -> None:
                self.latest = moment
                self.show(moment.n_sweeps, moment.latest, moment.position)
                if keep is not None:
                    keep(moment)

            if chosen.interrupt is not None:
                if self.latest is not None and self.latest.state is not None:
                    watch(self.latest)
                raise chosen.interrupt
            return _run_in_range(modelled, settings, self.rng, watch, self.latest)

    def _result(self, chosen: Chosen, fitted: Outcome) -> Result:
        found = Result(
            self.observations,
            fitted.state.strongest_first(),
            fitted.trace,
            fitted.stop_reason,
            self.settings,
            time.perf_counter() - self.started,
            __version__,
            chosen.reading.link,
            chosen.reading.arrangement,
            chosen.comparisons,
            self.held_back,
            fitted.cap_gain,
        )
        return replace(found, diagnosis=diagnose(found))

    def _with_last_word(self, found: Result, settings: Settings) -> Result:
        """The result after held-out entries have had the last word on its rank and on the width of its intervals."""

        def watch(record: Record) -> None:
            self.show(record.sweep, record, stage="held-out entries")

        found = last_word(found, settings, self.rng, self.deadline, watch)
        return replace(found, seconds=time.perf_counter() - self.started, diagnosis=diagnose(found))


def fit_on(block: Observations, earlier: Result, *, progress: str | None) -> Result:
    """Update an earlier fit with a block of new slices of the first mode, with its settings."""
    settings = earlier.settings
    if earlier.held_back is not None:
        raise ValueError(
            "partial_fit cannot continue a fit with conformal intervals, got "
            f"calibrate={settings.calibrate!r}. Fit with calibrate=None."
        )
    if earlier.state.smooth is not None:
        raise ValueError(
            "partial_fit cannot continue a fit with a smooth residual, which keeps numbers for every entry. Fit all "
            "data at once, or the first block with smooth_residual=None."
        )
    if earlier.arrangement.folds:
        raise ValueError(
            f"partial_fit cannot continue a fit with folded modes, here {earlier.arrangement}: the block would begin "
            "in the middle of a period. Fit all data at once, or the first block with arrangement=None."
        )
    if "cyclic" in settings.said_of_modes(earlier.observations.order).get(0, ()):
        raise ValueError(
            "partial_fit adds rows to mode 0, but a cyclic mode has no end. Fit all data at once, or the first block "
            "with modes={0: 'ordered'}."
        )
    _check_fit_memory(block, replace(settings, max_rank=max(1, earlier.rank)))
    started = time.perf_counter()
    with progress_bar(progress, settings.max_sweeps, settings.max_seconds) as show:
        modelled, steps = earlier.as_modelled(block), _steps_to(block, earlier)
        fitted = absorb(modelled, earlier.state, settings, lambda record: show(record.sweep, record), steps)
    seconds = time.perf_counter() - started
    observations = place_last(block, earlier.observations)
    result = replace(
        earlier,
        observations=observations,
        state=fitted.state,
        trace=fitted.trace,
        stop_reason=fitted.stop_reason,
        seconds=seconds,
        version=__version__,
        cap_gain=None,
    )
    return replace(result, diagnosis=diagnose(result))


def _steps_to(block: Observations, earlier: Result) -> Array:
    """Distances of the rows of a block from the last one and from each other, according to their labels."""
    own, new = earlier.observations.mode_labels[0], block.mode_labels[0]
    if own is not None and new is not None and earlier.state.row_priors[0].ordered:
        check_times(joined(own, new), 0)
    return np.diff(steps_onward(own, new, block.shape[0]), prepend=0.0)


def _run_in_range(
    modelled: Observations,
    settings: Settings,
    rng: np.random.Generator,
    watch: Callable[[Moment], None],
    since: Moment | None,
) -> Outcome:
    """Run the inference; raise if the values differ so much in size that it overflows."""
    if modelled.largest <= FAR_APART * modelled.scale:
        return run(modelled, settings, rng, watch, since)
    cause = None
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            fitted = run(modelled, settings, rng, watch, since)
        means = [rows.mean for rows in fitted.state.factors]
        if np.isfinite(fitted.trace[-1].bound) and all(np.isfinite(mean).all() for mean in means):
            return fitted
    except (np.linalg.LinAlgError, ArithmeticError) as error:
        cause = error
    raise ValueError(
        f"Y reaches {modelled.largest:.3g}, but its typical size is {modelled.scale:.3g} or less: the fit overflowed. "
        "Mark fill values as missing: pass mask=, or set them to NaN; or "
        'try link="log".'
    ) from cause


def new_data(Y: Any, result: Result, mask: Any = None, *, same_rows: bool = False) -> Observations:
    """New slices of the first mode, or with ``same_rows`` other entries of the fitted data, read like these."""
    observations = observe(Y, mask, dtype=None if same_rows else result.observations.values.dtype)
    check_like_fitted(observations, result.observations, same_rows=same_rows)
    labels = result.observations.labels
    if labels is not None and not same_rows:
        labels = replace(labels, coords=(observations.mode_labels[0], *labels.coords[1:]))
    return without_scatter(observations, result.settings.scatter, labels)


def on_new_rows(observations: Observations, earlier: Result) -> Result:
    """The result for new slices of the first mode, with everything but their rows as fitted earlier."""
    if earlier.settings.inference == "paper":
        raise ValueError(
            'New slices are judged by the outlier model of calibrated inference: fit with inference="calibrated".'
        )
    state = typical_rows(earlier.state)
    state = state.with_factor(0, *fold_in(earlier.as_modelled(observations), earlier.state, earlier.settings))
    return replace(earlier, observations=replace(observations, scale=earlier.scale), state=state, held_back=None)


def _hold_back(observations: Observations, rng: np.random.Generator) -> tuple[Observations, Observations]:
    """Split the entries into those to fit and a random 5 % to calibrate the intervals."""
    n_observed = observations.n_observed
    n_held_back = n_observed // 20
    if n_held_back < FEWEST_HELD_BACK:
        raise ValueError(
            f'calibrate="conformal" holds back 5 % of the observed entries and needs at least {FEWEST_HELD_BACK} of '
            f"them, but Y has {n_observed} observed entries, which gives {n_held_back}. "
            f"Give at least {20 * FEWEST_HELD_BACK}, or use calibrate=None."
        )
    held_back = np.zeros(n_observed, dtype=bool)
    held_back[rng.choice(n_observed, n_held_back, replace=False)] = True
    return observations.select(~held_back), observations.select(held_back)


def _check_chunked(settings: Settings) -> None:
    """Refuse options that store a number per entry, which chunked data cannot have."""
    for name, plain in (
        ("inference", "calibrated"),
        ("link", None),
        ("arrangement", None),
        ("smooth_residual", None),
        ("scatter", None),
        ("calibrate", None),
    ):
        if getattr(settings, name) not in (plain, "auto"):
            raise ValueError(
                f"{name}={getattr(settings, name)!r} needs data in memory, but Y is read in chunks. Use {name}="
                f"{plain!r}, or pass an array."
            )


def _check_fit_memory(observations: Observations, settings: Settings) -> None:
    """Refuse a fit that would not fit into memory, before anything is allocated."""
    rank = settings.rank_limit(observations.shape, observations.n_observed)
    if settings.max_rank is None and settings.inference == "calibrated":
        rank = affordable_rank(observations, settings)
    n_bytes = fit_bytes(observations, settings, rank)
    check_memory(n_bytes, f"a fit of shape {observations.shape} with max_rank {rank}", "lower max_rank")


def processing(executor: Any, n_jobs: int | None) -> AbstractContextManager[str | None]:
    """A context in which an executor, or this many workers, process chunks; yields the address of the dashboard."""
    return executing(executor, count_workers(-1 if n_jobs is None else n_jobs))
