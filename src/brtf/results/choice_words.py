"""What was chosen by the bound where the options left it open, against what, and by how many nats."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from brtf.inference.trace import Event, Kind, StopReason
from brtf.model.row_priors import InOrder, KnownOrder
from brtf.model.state import OutlierStructure

if TYPE_CHECKING:
    from brtf.results.result import Result

OTHER_OUTLIERS = (Kind.REPLACED, Kind.SHARED, Kind.RATES, Kind.SIDES)
"""The kinds of events that propose outliers other than those added to the data, each on its own."""
CUT_SHORT = (StopReason.INTERRUPTED, StopReason.MAX_SECONDS, StopReason.UNFINISHED)
STOPPED = (*CUT_SHORT, StopReason.MAX_SWEEPS)
FEWEST = 1e-5
"""Outlier rate below which there are none, as in the summary."""


@dataclass(frozen=True)
class Choice:
    """One choice of the bound; prints as a sentence.

    Attributes
    ----------
    option : the option that was "auto"
    value : what was chosen, as the option would say it
    gain : nats by which the bound prefers it to the best of what else was tried; None where nothing else was
    sentence : the same in words
    """

    option: str
    value: Any
    gain: float | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def choices_of(result: Result) -> dict[str, Choice]:
    """The choices of a fit, by option."""
    if result.settings.inference == "paper":
        return {}
    options = [option for option in ("link", "arrangement") if getattr(result.settings, option) == "auto"]
    made = [_reading(result, option) for option in options]
    if any(comparison.option == "rank_by" for comparison in result.comparisons):
        made.append(_rank(result))
    if result.settings.noise == "auto":
        made.append(_noise(result))
    if result.settings.outlier_kind == "auto" and result.settings.robust:
        made.append(_outliers(result))
    if result.settings.modes == "auto":
        made.append(_modes(result))
    if result.settings.smooth_residual == "auto":
        made.append(_smooth(result))
    return {choice.option: choice for choice in made}


def _rank(result: Result) -> Choice:
    (comparison,) = (one for one in result.comparisons if one.option == "rank_by")

    def than(rank: str) -> str:
        return f"another fit with {rank}" if rank == comparison.chosen else rank

    others = ", ".join(
        f"{nats(gain)} better than {than(rank)}"
        if gain >= 0
        else f"{nats(-gain)} worse than {than(rank)}, no more than chance"
        for rank, gain in comparison.tried
    )
    words = f"{comparison.chosen} components predict {comparison.n_entries:,} held-out entries best"
    gain = min((gain for _, gain in comparison.tried), default=None)
    return Choice("rank_by", "held-out entries", gain, f"{words}: {others}." if others else f"{words}.")


def modes_in_words(modes: Sequence[int]) -> str:
    """Modes as text, such as modes 0 and 1."""
    return f"mode{'s' if len(modes) > 1 else ''} {listed([str(mode) for mode in modes])}"


def named_modes(result: Result, modes: Sequence[int]) -> str:
    """Modes by their names, such as time and latitude; by their numbers where they have none."""
    dims = result.observations.dim_names
    return listed([str(dims[mode]) for mode in modes]) if dims else modes_in_words(modes)


def _noise(result: Result) -> Choice:
    judged = [record.event for record in result.trace if record.event.kind is Kind.NOISE]
    accepted, rejected = ([event for event in judged if event.accepted is yes] for yes in (True, False))
    back = [record.event for record in result.trace if record.event.kind is Kind.COMMON_NOISE]
    if result.noise_modes:
        gain = -back[-1].gain if back and not back[-1].accepted else accepted[-1].gain if accepted else None
        words = f"The noise differs along {named_modes(result, result.noise_modes)}"
        text = "" if gain is None else f": {nats(gain)} better than one level for all entries"
        return Choice("noise", "per-slice", gain, f"{words}{text}.")
    if back:
        gain, text = back[-1].gain, f"{nats(back[-1].gain)} better than noise that differs between slices"
    else:
        gain, text = _not_chosen(rejected, "slices do not seem to differ", "the best slices tried")
    return Choice("noise", "common", gain, f"The noise is one level for all entries: {text}.")


def _not_chosen(rejected: Sequence[Event], untried: str, tried: str) -> tuple[float | None, str]:
    """By how many nats the choice is better than the best alternative, and why that was not chosen."""
    if not rejected:
        return None, untried
    gain = -max(event.gain for event in rejected)
    return gain, f"{tried} are {nats(gain)} worse" if gain >= 0 else f"{tried} gain {nats(-gain)}, too little to count"


def _outliers(result: Result) -> Choice:
    structure = result.state.structure or OutlierStructure()
    judged = [record.event for record in result.trace]
    known = {event.kind: event.gain for event in judged if event.accepted}  # the last of each counts

    def better(gain: float | None, than: str) -> str:
        return "" if gain is None else f" ({nats(gain)} better than {than})"

    told, gains = [], []
    if structure.law is not None:
        gains.append(known.get(Kind.REPLACED))
        told.append(f"replace values{better(gains[-1], 'added to them')}")
    if structure.modes and result.settings.outlier_modes is None:
        gains.append(known.get(Kind.SHARED))
        modes = named_modes(result, result.arrangement.modes_of(structure.modes))
        told.append(f"are shared along {modes}{better(gains[-1], 'each on its own')}")
    if structure.rates is not None and result.settings.outlier_labels is None:
        back = [event.gain for event in judged if event.kind is Kind.ONE_RATE]
        gains.append(-back[-1] if back else known.get(Kind.RATES))
        modes = named_modes(result, result.arrangement.modes_of(structure.rates.modes))
        differ = "along" if structure.rates.labels is None else "with the distance of"
        told.append(f"differ in number {differ} {modes}{better(gains[-1], 'at one rate')}")
    if structure.sides is not None:
        gains.append(known.get(Kind.SIDES))
        share = 100.0 * max(structure.sides.mean, 1.0 - structure.sides.mean)
        side = "positive" if structure.sides.mean > 0.5 else "negative"
        told.append(f"are {side} in {share:.0f} % of the cases{better(gains[-1], 'of either sign')}")
    value = result.outlier_kind
    if told:
        certain = [gain for gain in gains if gain is not None]
        words = f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else told[0]
        return Choice("outlier_kind", value, sum(certain) if certain else None, f"Outliers {words}.")
    if not result.state.local.has_outliers or result.state.local_model.probability < FEWEST:
        return Choice("outlier_kind", value, None, "There are no outliers.")
    rejected = [event for event in judged if not event.accepted and event.kind in OTHER_OUTLIERS]
    gain, why = _not_chosen(rejected, "nothing suggests another kind", "others that were tried")
    return Choice("outlier_kind", value, gain, f"Outliers are added to the data, each on its own: {why}.")


def modes_of(result: Result) -> dict[int, tuple[str, ...]]:
    """What the fit takes each mode to be, in the words of the option ``modes``; modes read as one are unordered.

    A folded mode is what its rounds are.
    """
    found: dict[int, tuple[str, ...]] = {}
    for group, prior in zip(result.arrangement.read_modes, result.state.row_priors, strict=True):
        order = "unordered"
        if isinstance(prior, InOrder) and len(group) == 1:
            order = "cyclic" if prior.form.ring else "ordered"
        for mode in group:
            found.setdefault(mode, (order,) if prior.signed else (order, "nonnegative"))
    return dict(sorted(found.items()))


def _modes(result: Result) -> Choice:
    judged = [record.event for record in result.trace]
    of_order = [event for event in judged if event.kind is Kind.ORDER]
    of_signs = [event for event in judged if event.kind is Kind.NON_NEGATIVE]
    priors = result.state.row_priors
    named = zip(_factor_names(result), priors, strict=True)
    ordered = [(name, prior) for name, prior in named if isinstance(prior, InOrder)]
    unsigned = [group for group, prior in zip(result.arrangement.read_modes, priors, strict=True) if not prior.signed]
    sentences, gains = [], []
    if ordered:
        gain = sum(event.gain for event in of_order if event.accepted)
        gains.append(gain)
        told = " and ".join(f"{name} ({course_in_words(prior)})" for name, prior in ordered)
        sentences.append(f"Rows follow each other along {told}: {nats(gain)} better than rows in no order.")
    else:
        released = [one for one in result.comparisons if one.option == "modes"]
        why = _why_not(result, of_order, "nothing suggests an order", "in order")
        for one in released:
            why = f"in order they predict {one.n_entries:,} held-out entries worse, by {nats(one.tried[0][1])}"
        sentences.append(f"Rows are in no order: {why}.")
    if unsigned:
        gain = sum(event.gain for event in of_signs if event.accepted)
        gains.append(gain)
        told = ", ".join(named_modes(result, group) for group in unsigned)
        sentences.append(
            f"The loadings of {told} are never negative: {nats(gain)} better than loadings of either sign."
        )
    else:
        why = _why_not(result, of_signs, "no mode has loadings of one sign", "without negative ones")
        sentences.append(f"Loadings have either sign: {why}.")
    if not gains:
        tried = [event.gain for event in (*of_order, *of_signs)]
        gains = [-max(tried)] if tried else []
    words = {mode: words[0] if len(words) == 1 else words for mode, words in modes_of(result).items()}
    return Choice("modes", words, sum(gains) if gains else None, " ".join(sentences))


def rows_in_words(result: Result) -> str:
    """How the loadings of each mode vary according to the prior that the bound chose for them, as a sentence."""
    said: dict[str, list[str]] = {}
    for name, prior in zip(_factor_names(result), result.state.row_priors, strict=True):
        said.setdefault(prior.words, []).append(name)
    told = [f"of {listed(names)} {words}" for words, names in said.items()]
    return f"Loadings {'; those '.join(told)}."


def _factor_names(result: Result) -> list[str]:
    """The modes of every factor by name; those of a folded mode are first its rounds, then the positions within one."""
    names, before = list[str](), tuple[int, ...]()
    for group in result.arrangement.read_modes:
        name = named_modes(result, group)
        if group == before:
            name = f"the positions within a period of {name}"
        elif len(group) > 1:
            name = f"{name} together"
        names.append(name)
        before = group
    return names


def listed(names: Sequence[str]) -> str:
    """Names as text, such as time, latitude and longitude."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _why_not(result: Result, judged: Sequence[Event], untried: str, tried: str) -> str:
    if not judged:
        return "no other was found before the fit stopped" if result.stop_reason in STOPPED else untried
    loss = -max(event.gain for event in judged)
    return (
        f"{tried} the fit is {nats(loss)} worse"
        if loss >= 0
        else f"{tried} it gains {nats(-loss)}, too little to count"
    )


def course_in_words(prior: InOrder) -> str:
    """How the components of a mode go on from row to row, as text: for how many rows they remember, and a period."""
    carrier, likely = np.divmod(np.argmax(prior.share, axis=1), prior.n_memories)
    n_first, ways = prior.n_memories - prior.form.n_second, []
    remembered = {2 ** int(kind - 1) for kind in likely if 0 < kind < n_first}
    smooth = {2 ** int(kind - n_first + 1) for kind in likely if kind >= n_first}
    for lengths, words in ((remembered, "memory of"), (smooth, "smooth over")):
        shown = [f"{n:,}" if n <= prior.steps.size else "all" for n in sorted(lengths)]
        if shown:
            ways.append(f"{words} {shown[0] if shown[0] == shown[-1] else f'{shown[0]} to {shown[-1]}'} rows")
    if prior.form.ring:
        ways.append("in a ring")
    if (likely == 0).any():
        ways.append(f"{np.count_nonzero(likely == 0)} of {likely.size} components in no order")
    if not isinstance(prior, KnownOrder):
        return ", ".join(ways)
    periods = {round(1.0 / frequency) for frequency, _ in prior.carriers[carrier[carrier > 0] - 1]}
    if prior.centre.shape[1] > 1:
        ways.append(f"a period of {prior.centre.shape[1]} rows")
    if periods:
        told = " and ".join(f"{period:,}" for period in sorted(periods))
        ways.append(f"patterns of {told} rows that change slowly")
    return ", ".join(ways) or "nothing to remember"


def _smooth(result: Result) -> Choice:
    mode = result.smooth_mode
    found = next((one for one in result.comparisons if one.option == "smooth_residual" and one.tried), None)
    gain = None if found is None else found.tried[0][1]
    if mode is not None:
        words = (
            f"Every fibre along {named_modes(result, (mode,))} has a smooth course of its own beside the low-rank part"
        )
        told = "" if gain is None else f": {nats(gain)} better than components alone"
        return Choice("smooth_residual", mode, gain, f"{words}{told}.")
    told = "neighbouring residuals do not resemble each other"
    if found is not None and gain is not None:
        gave_way = found.chosen == str(True)
        told = "it gave way to components" if gave_way else f"with one the fit is {nats(gain)} worse"
        gain = None if gave_way else gain
    return Choice("smooth_residual", None, gain, f"There is no smooth residual: {told}.")


def _reading(result: Result, option: str) -> Choice:
    found = [comparison for comparison in result.comparisons if comparison.option == option]
    tried = sorted((pair for comparison in found for pair in comparison.tried), key=lambda pair: pair[1])
    if option == "link":
        value: Any = result.link.name
        words = "The data are fitted as they are" if value is None else f"{value}(data) is fitted"
        why = "negative or constant values allow no other" if not found else "their noise does not depend on the level"
    else:
        arrangement = result.arrangement
        value = arrangement.periods or arrangement.groups
        merged = [group for group in arrangement.groups if len(group) > 1]
        together = " and ".join(f"{named_modes(result, group)} as one" for group in merged)
        words = f"The modes are read with {together}" if merged else "Every mode is read on its own"
        if arrangement.folds:
            named = [(named_modes(result, (mode,)).removeprefix("mode "), period) for mode, period in arrangement.folds]
            words = " and ".join(f"mode {name} is folded by its period of {period}" for name, period in named)
            words = words[0].upper() + words[1:]
        why = "no mode has a clear period"
        if result.observations.order > 2:
            why += ", and nothing suggests merging modes"
    if result.observations.in_chunks and not found:  # or without its entries, as from a checkpoint
        why = "no other was compared"
    elif result.stop_reason in CUT_SHORT and not found:
        why = "the fit was cut short before others were compared"
    gain = tried[0][1] if tried else None
    others = ", ".join(f"{nats(worse)} better than {_named(result, option, name)}" for name, worse in tried)
    n_entries = found[0].n_entries if found else result.observations.n_observed
    of = "" if gain is None or n_entries == result.observations.n_observed else f" (estimated on {n_entries:,} entries)"
    return Choice(option, value, gain, f"{words}: {others or why}{of}.")


def _named(result: Result, option: str, name: str) -> str:
    if option == "link":
        return "the data as they are" if name == "None" else name
    groups = ast.literal_eval(name)
    if isinstance(groups, dict):
        return " and ".join(f"{named_modes(result, (mode,))} folded by {period}" for mode, period in groups.items())
    merged = " and ".join(f"{named_modes(result, group)} as one" for group in groups if len(group) > 1)
    return merged or "every mode on its own"


def nats(gain: float) -> str:
    """A number of nats as text."""
    return f"{gain:,.0f} nats" if abs(gain) >= 10 else f"{gain:.1f} nats"
