"""What was chosen by the bound where the options left it open, against what, and by how many nats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brtf.inference.trace import Kind

if TYPE_CHECKING:
    from brtf.results.result import Result


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
    if result.settings.noise == "auto":
        made.append(_noise(result))
    return {choice.option: choice for choice in made}


def modes_in_words(modes: Sequence[int]) -> str:
    """Modes as text, such as modes 0 and 1."""
    *first, last = map(str, modes)
    return f"modes {', '.join(first)} and {last}" if first else f"mode {last}"


def _noise(result: Result) -> Choice:
    judged = [record.event for record in result.trace if record.event.kind is Kind.NOISE]
    if result.noise_modes:
        gain = next((event.gain for event in reversed(judged) if event.accepted), None)
        words = f"The noise differs along {modes_in_words(result.noise_modes)}"
        told = "" if gain is None else f": {nats(gain)} better than one level for all entries"
        return Choice("noise", "per-slice", gain, f"{words}{told}.")
    gain = -max(event.gain for event in judged) if judged else None
    told = "no slices promise a gain" if gain is None else f"the best slices tried are {nats(gain)} worse"
    return Choice("noise", "common", gain, f"The noise is one level for all entries: {told}.")


def _reading(result: Result, option: str) -> Choice:
    found = [comparison for comparison in result.comparisons if comparison.option == option]
    tried = sorted((pair for comparison in found for pair in comparison.tried), key=lambda pair: pair[1])
    if option == "link":
        value: Any = result.link.name
        words = "The data are fitted as they are" if value is None else f"{value}(data) is fitted"
        why = "negative or constant values allow no other" if not found else "their noise does not depend on the level"
    else:
        value = result.arrangement.groups
        merged = [group for group in value if len(group) > 1]
        together = " and ".join(f"{modes_in_words(group)} as one" for group in merged)
        words = f"The modes are read with {together}" if merged else "Every mode is read on its own"
        why = "a matrix has no other" if result.observations.order == 2 else "the residual leaves nothing to merge for"
    if result.observations.in_chunks and not found:
        why = "data in chunks are read as they are"
    gain = tried[0][1] if tried else None
    others = ", ".join(f"{nats(worse)} better than {_named(option, name)}" for name, worse in tried)
    n_entries = found[0].n_entries if found else result.observations.n_observed
    of = "" if gain is None or n_entries == result.observations.n_observed else f" (estimated on {n_entries:,} entries)"
    return Choice(option, value, gain, f"{words}: {others or why}{of}.")


def _named(option: str, name: str) -> str:
    if option == "link":
        return "the data as they are" if name == "None" else name
    return name


def nats(gain: float) -> str:
    """A number of nats as text."""
    return f"{gain:,.0f} nats" if abs(gain) >= 10 else f"{gain:.1f} nats"
