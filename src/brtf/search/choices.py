"""How to read the data: which link, which modes are read as one or folded, and whether courses of fibres are smooth.

Every reading of the data has a bound of the same ln p(Y), and the bound chooses. Readings race: each is a search of its
own, a few dozen sweeps at a time, and one that cannot catch up any more drops out. The reading that the search would
have without a choice is the first runner, so that on data where nothing is to be chosen the search goes on from there,
and nothing is lost. Four screens save most races: a link is tried only where the noise depends on the level, modes are
merged only where the residual has structure beyond chance that merging would explain or where merged modes could have
what was found with as few numbers, a mode is folded only by periods that time stamps or lines in its spectrum suggest,
and fibres have smooth courses of their own only where neighbouring residuals are alike. Where modes were merged or
folded, the links race once more, as what looks multiplicative as given may not be so then. Smooth courses and
components replace each other, so that neither can be judged beside the other: the two ways of explaining the data race
from the start. A race is over where a search has found all components; whether rows are in order is looked at after it.

Large data race on a part, random positions along every mode (along one that may be folded, neighbouring ones; where
fibres may have courses, runs of neighbours), and the bounds are scaled to the whole: the likelihood by the number of
entries, the divergence of the rows of a mode by their number. Where a sketch of all entries shows everything that is to
be explained, no race is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from brtf.data.observations import Observations
from brtf.model.links import possible_links
from brtf.model.settings import Settings
from brtf.search.moment import Deadline, Moment
from brtf.search.race import Race
from brtf.search.reading import Reading, doubled, given_reading, possible_folds, smooth_mode_of


@dataclass(frozen=True)
class Comparison:
    """One choice: what was chosen for an option, and by how much the bound prefers it to what else was tried.

    Attributes
    ----------
    option : "link", "arrangement" or "smooth_residual"
    chosen : the value, as text
    tried : what it was compared with, as text, and the nats by which the chosen value is better; empty if the screen
        showed that nothing else pays
    n_entries : entries on which they were compared
    """

    option: str
    chosen: str
    tried: tuple[tuple[str, float], ...]
    n_entries: int


@dataclass(frozen=True, eq=False)
class Chosen:
    """The result of the choice: the reading, the comparisons, and a moment of its search to go on from, if any.

    If it was interrupted, the interrupt, and the reading that had won until then.
    """

    reading: Reading
    comparisons: tuple[Comparison, ...] = ()
    since: Moment | None = None
    interrupt: KeyboardInterrupt | None = None


def choose(
    observations: Observations,
    settings: Settings,
    rng: np.random.Generator,
    seconds: float | None = None,
    watch: Callable[[Moment], object] = lambda moment: None,
) -> Chosen:
    """The reading of the data that the bound prefers among those that the settings leave open.

    After ``seconds`` it is the best one so far. ``watch`` receives every moment of the searches that race.
    """
    plain = given_reading(observations, settings)
    automatic = settings.inference == "calibrated" and isinstance(settings.init, str) and not observations.in_chunks
    # values that replace others repeat exactly, and the density of those depends on the link without meaning anything
    comparable = settings.link == "auto" and automatic and settings.outlier_kind != "replacement"
    links = possible_links(observations, plain.link.step) if comparable else [plain.link]
    arranging = settings.arrangement == "auto" and automatic
    folds = possible_folds(observations) if arranging else []
    folds = [one for one in folds if one.leaves(smooth_mode_of(settings, observations.order))]
    arranging = arranging and (observations.order > 2 or bool(folds))
    may_be_smooth = automatic and settings.smooth_residual == "auto" and bool(settings.smooth_modes(observations.shape))
    if len(links) == 1 and not arranging and not may_be_smooth:
        return Chosen(plain)
    folded = {mode for one in folds for mode, _ in one.folds}
    neighbours = settings.smooth_modes(observations.shape) if may_be_smooth else ()
    race = Race(observations, settings, rng, Deadline(seconds), watch, folded, neighbours)
    if not race.is_possible(plain):
        return Chosen(plain)
    best, comparisons = plain, list[Comparison]()
    try:
        race.begin(plain)
        if race.deadline.passed:
            return Chosen(plain, since=race.moment(plain))
        smooth = may_be_smooth and race.neighbours_are_alike(plain)
        if len(links) > 1:
            links = links if race.noise_follows_level(plain) else links[:1]
            best, tried = race.run(best, [replace(plain, link=link) for link in links[1:]])
            comparisons.append(Comparison("link", str(best.link.name), tried, race.n_entries))
        if arranging:
            tried_before: tuple[tuple[str, float], ...] = ()
            rivals = [replace(best, arrangement=one) for one in folds]
            while not race.deadline.look():
                found, tried = race.run(best, [*rivals, *race.mergers(best)], patient=True)
                tried_before += tried
                if found is best:
                    break
                best = found
                rivals = [replace(best, arrangement=one) for one in doubled(best.arrangement, observations.shape)]
                rivals = [one for one in rivals if one not in race.runners]
            comparisons.append(Comparison("arrangement", str(best.arrangement), tried_before, race.n_entries))
            if len(links) > 1 and best.arrangement != plain.arrangement:  # the link was chosen for other modes
                best, tried = race.run(best, [replace(best, link=link) for link in links if link != best.link])
                comparisons[0] = (
                    Comparison("link", str(best.link.name), tried, race.n_entries) if tried else comparisons[0]
                )
        if may_be_smooth:
            rivals = [replace(best, smooth=True), replace(best, smooth=True, arrangement=plain.arrangement)]
            best, tried = race.run(best, list(dict.fromkeys(rivals)) if smooth else [], patient=True)
            comparisons.append(Comparison("smooth_residual", str(best.smooth), tried, race.n_entries))
    except KeyboardInterrupt as interrupt:
        return Chosen(best, tuple(comparisons), race.moment(best), interrupt)
    return Chosen(best, tuple(comparisons), race.moment(best))
