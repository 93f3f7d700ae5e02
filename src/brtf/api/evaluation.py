"""How well models predict held-out entries: errors, log densities and coverage."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import is_real, is_whole
from brtf.data.observations import Observations, numbered_along
from brtf.data.observe import observe
from brtf.data.scale import root_mean_square
from brtf.data.scatter import resolved, without_scatter

if TYPE_CHECKING:
    from brtf.api.estimator import BRTF

__all__ = ["Evaluation", "evaluate"]

PATTERNS = ("entries", "fibres", "slices")
LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Results of :func:`evaluate`.

    Attributes
    ----------
    rows : list of dict
        One for every repeat and model: ``model``, ``repeat``, ``n_held_out`` (number of entries); ``rmse``, ``mae``,
        ``median_error`` (root mean square, mean and median of |y − x̄|, in the units of the data); ``log_density``
        (mean log predictive density, nats per entry); ``coverage_50``, ``coverage_80``, ``coverage_95`` (share of
        held-out values inside their intervals) and ``width_95`` (mean width of the 95 % intervals); ``rank``,
        ``converged`` and ``seconds`` of the fit.
    hold_out, pattern, mode, seed : the arguments of the call
    """

    rows: list[dict[str, Any]]
    hold_out: float
    pattern: str
    mode: int
    seed: int

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """A line per model as text: means over the repeats, ± their standard deviation where there are several."""
        names = list(dict.fromkeys(row["model"] for row in self.rows))
        columns = [name for name in self.rows[0] if name not in ("model", "repeat", "n_held_out", "converged")]
        lines = []
        for name in names:
            repeats = [row for row in self.rows if row["model"] == name]
            lines.append([name, *(_mean_text([row[column] for row in repeats]) for column in columns)])
        return text_table([["model", *columns], *lines])

    def to_frame(self) -> Any:
        """The rows as a pandas.DataFrame."""
        import pandas

        return pandas.DataFrame(self.rows)


def evaluate(
    Y: Any,
    mask: Any = None,
    *,
    model: BRTF | Mapping[str, Any] | None = None,
    hold_out: float = 0.1,
    pattern: str = "entries",
    mode: int = 0,
    n_repeats: int = 1,
    seed: int = 0,
) -> Evaluation:
    """Hold out some observed entries, fit models to the rest, and compare their predictions with the held-out values.

    All models see the same entries. The given models are not changed: clones with the same options are fitted.

    Parameters
    ----------
    Y, mask
        The data, as for :meth:`BRTF.fit`. Sparse data stay sparse.
    model : BRTF, dict of options, dict of names to either, or None
        What to evaluate; None is ``BRTF()``. ``{"link": "sqrt"}`` stands for ``BRTF(link="sqrt")``, which is compared
        with ``BRTF()``. A model whose ``random_state`` is None gets ``seed``.
    hold_out : float
        The share to hold out, between 0 and 1, and at most 0.5 for "slices".
    pattern : {"entries", "fibres", "slices"}
        "entries": random entries, independently. "fibres": whole random fibres, that is all observed entries that
        differ only in their position along ``mode``. "slices": a random half of the observed entries of random slices
        of ``mode``; the other half still determines the row. Twice as many slices are drawn as ``hold_out`` says.
    mode : int
        The mode of the fibres or slices.
    n_repeats : int
        Number of times to draw the held-out entries.
    seed : int
        Seed of the draws, and of models whose ``random_state`` is None.

    Returns
    -------
    Evaluation
    """
    if not is_whole(n_repeats) or n_repeats < 1:
        raise ValueError(f"n_repeats must be an integer of at least 1, got {n_repeats!r}.")
    models = _named_models(model)
    observations = observe(Y, mask)
    rng = np.random.default_rng(seed)
    rows = []
    for repeat in range(n_repeats):
        hidden = draw_hidden(observations, hold_out, rng, pattern=pattern, mode=mode)
        shown, held_out = observations.select(~hidden), observations.select(hidden)
        for given in models.values():  # what one of them leaves out is asked of none
            if given.scatter is not None:
                held_out = without_scatter(held_out, resolved(given.scatter, held_out.dim_names, held_out.order))
        for name, given in models.items():
            options = copy.deepcopy(given.get_params())
            if options["random_state"] is None:
                options["random_state"] = seed
            fitted = type(given)(**options).fit(shown)
            rows.append({"model": name, "repeat": repeat, **assess(fitted, held_out)})
    return Evaluation(rows, hold_out, pattern, mode, seed)


def draw_hidden(
    observations: Observations, hold_out: float, rng: np.random.Generator, *, pattern: str = "entries", mode: int = 0
) -> NDArray[np.bool_]:
    """Which entries to hold out, (M,), drawn as described in :func:`evaluate`; at least one, and not all."""
    if pattern not in PATTERNS:
        raise ValueError(f"pattern must be one of {PATTERNS}, got {pattern!r}.")
    largest = 0.5 if pattern == "slices" else 1.0
    if not is_real(hold_out) or not 0 < hold_out <= largest or hold_out == 1:
        raise ValueError(
            f"hold_out must be between 0 and 1, and at most 0.5 for slices, of which half is kept; got {hold_out!r}."
        )
    if not is_whole(mode) or not 0 <= mode < observations.order:
        raise ValueError(f"mode must be one of the modes 0 to {observations.order - 1} of the data, got {mode!r}.")
    if pattern == "entries":
        group = np.arange(observations.n_observed)
    elif pattern == "fibres":
        group = numbered_along(observations, [k for k in range(observations.order) if k != mode])
    else:
        group = numbered_along(observations, [mode])
    n_in_group = np.bincount(group)
    n_drawn = max(1, round(hold_out / largest * n_in_group.size))
    drawn = np.zeros(n_in_group.size, dtype=bool)
    drawn[rng.choice(n_in_group.size, n_drawn, replace=False)] = True
    hidden = drawn[group]
    if pattern == "slices":
        shuffled = np.lexsort((rng.random(group.size), group))
        place_in_slice = np.empty(group.size, dtype=np.intp)
        place_in_slice[shuffled] = np.arange(group.size) - np.repeat(np.cumsum(n_in_group) - n_in_group, n_in_group)
        hidden &= place_in_slice < n_in_group[group] // 2
    if hidden.all() or not hidden.any():
        raise ValueError(
            f"hold_out={hold_out} of {pattern} would hold out {np.count_nonzero(hidden)} of {hidden.size} entries: "
            "at least one must be held out and at least one fitted. Use another share or pattern, or more data."
        )
    return hidden


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """A header and rows of cells as aligned text columns; numbers are right-aligned."""
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = ([row[0].ljust(first), *map(str.rjust, row[1:], widths)] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _named_models(model: BRTF | Mapping[str, Any] | None) -> dict[str, BRTF]:
    from brtf.api.estimator import BRTF

    if model is None:
        model = BRTF()
    models = dict(model) if isinstance(model, Mapping) else {"BRTF": model}
    named = any(isinstance(given, (BRTF, Mapping)) for given in models.values())
    if isinstance(model, Mapping) and models and not named:
        options = ", ".join(f"{name}={value!r}" for name, value in models.items())
        models = {"BRTF()": {}, f"BRTF({options})": models}
    if not models or not all(isinstance(given, (BRTF, Mapping)) for given in models.values()):
        raise TypeError(
            f"model must be a BRTF, a dict of its options, or a dict with either for every name, got {model!r}."
        )
    return {str(name): given if isinstance(given, BRTF) else BRTF(**given) for name, given in models.items()}


def assess(fitted: BRTF, held_out: Observations) -> dict[str, Any]:
    """The numbers of a row of :class:`Evaluation` that compare a fit with held-out entries."""
    coords = held_out.entry_coords()
    values = held_out.values.astype(np.float64)
    error = np.abs(values - fitted.predict(coords))
    covered = {}
    for level in LEVELS:
        low, high = fitted.predict_interval(coords, level, of="observation")
        covered[f"coverage_{100 * level:.0f}"] = float(np.mean((low <= values) & (values <= high)))
    return {
        "n_held_out": held_out.n_observed,
        "rmse": root_mean_square(error),
        "mae": float(np.mean(error)),
        "median_error": float(np.median(error)),
        "log_density": fitted.score(held_out),
        **covered,
        "width_95": float(np.mean(high - low)),
        "rank": fitted.rank_,
        "converged": fitted.converged_,
        "seconds": fitted.result_.seconds,
    }


def _mean_text(numbers_: Sequence[float]) -> str:
    mean = f"{np.mean(numbers_):.4g}"
    return mean if len(numbers_) == 1 else f"{mean} ± {np.std(numbers_, ddof=1):.2g}"
