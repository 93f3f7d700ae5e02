"""Where the estimator meets scikit-learn's conventions: options, seeds, second arguments, feature names."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import Labels
from brtf.data.observations import Observations
from brtf.model.settings import RENAMED, Settings

P = ParamSpec("P")

OTHER_NAMES_OF_RANK = ("rank", "n_components", "components", "k", "R")
"""What other libraries call the number of components."""


def suggests_options(constructor: Callable[P, None]) -> Callable[P, None]:
    """A constructor that answers an option it does not have with the one that was probably meant."""
    names = list(inspect.signature(constructor).parameters)[1:]
    owner = constructor.__qualname__.partition(".")[0]

    @functools.wraps(constructor)
    def checked(*args: P.args, **options: P.kwargs) -> None:
        check_options(options, names, TypeError, owner)
        constructor(*args, **options)

    return checked


def check_options(given: Iterable[str], names: Sequence[str], error: type[Exception], owner: str = "BRTF") -> None:
    """Raise the error for the first option that is none of the names, with the one that was probably meant."""
    for option in given:
        if option in names:
            continue
        close = difflib.get_close_matches(option, names, n=1)
        if option == "contamination":
            remedy = "the share of anomalies is found; q= is the share of false alarms among what is listed."
        elif option in OTHER_NAMES_OF_RANK and "max_rank" in names:
            remedy = "the number of components is found; max_rank= caps it."
        elif option in RENAMED and RENAMED[option] in names:
            remedy = f"it is now {RENAMED[option]}=."
        else:
            remedy = f"did you mean {close[0]}=?" if close else f"its options are {', '.join(names)}."
        raise error(f"{owner} has no option {option}=: {remedy}")


class TakesY:
    """Base class of transformers whose data are called Y: scikit-learn's wrapper of ``transform`` takes X only."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("transform", "fit_transform"):
            if name in cls.__dict__:
                setattr(cls, name, _takes_y(cls.__dict__[name]))


def _takes_y(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that scikit-learn has wrapped, with its data by position, as ``X=`` or as ``Y=``."""

    @functools.wraps(method)
    def called(self: Any, *args: Any, **named: Any) -> Any:
        return method(self, named.pop("Y"), **named) if "Y" in named and not args else method(self, *args, **named)

    return called


class UnavailableError(AttributeError, ValueError):
    """A method these options rule out: hidden from ``hasattr``, as scikit-learn expects, and a ValueError if called."""


def generator(random_state: Any) -> np.random.Generator:
    """One Generator from any seed that scikit-learn accepts."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.Generator(random_state._bit_generator)
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"random_state must be None, an integer of at least 0 or a NumPy generator, got {random_state!r}."
        ) from error


def mask_argument(positional: Any, mask: Any) -> Any:
    """The mask, given by name or as second positional argument; a scikit-learn target vector is not a mask."""
    if positional is None:
        return mask
    array = positional if hasattr(positional, "dtype") and hasattr(positional, "ndim") else np.asarray(positional)
    if array.dtype != bool and (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)):
        return mask
    if mask is not None:
        raise ValueError("mask was given twice, by position and by name: give it once.")
    return positional


def check_like_fitted(observations: Observations, fitted: Observations, *, same_rows: bool) -> None:
    """Raise if the shape or labels of new data do not match the fitted ones; worded as in scikit-learn where it can be.

    Labels of the first mode count only with ``same_rows``; those of data that have none match all.
    """
    got, wanted = observations.shape, fitted.shape
    if got[1:] != wanted[1:]:
        if len(got) == len(wanted) == 2:
            raise ValueError(f"X has {got[1]} features, but BRTF is expecting {wanted[1]} features as input.")
        remedy = " For a single slice pass Y[None]." if got == wanted[1:] else ""
        raise ValueError(f"Y has shape {got}, but the modes after the first must be {wanted[1:]} as fitted.{remedy}")
    if same_rows and got != wanted:
        raise ValueError(f"Y has shape {got}, but the model was fitted to {wanted}: mark what is not observed as NaN.")
    names, wanted_names = feature_names(observations), feature_names(fitted)
    if names is not None and wanted_names is not None and not np.array_equal(names, wanted_names):
        raise ValueError(
            f"The feature names should match those that were passed during fit: {list(wanted_names)}, "
            f"got {list(names)}. Select and order the columns accordingly."
        )
    if observations.labels is not None and fitted.labels is not None:
        _check_labels_alike(observations.labels, fitted.labels, first_mode=0 if same_rows else 1)


def _check_labels_alike(got: Labels, wanted: Labels, *, first_mode: int) -> None:
    """Raise if modes from the first one on are in another order, or their positions have other labels."""
    if got.dims != wanted.dims and sorted(got.dims) == sorted(wanted.dims):
        raise ValueError(f"The modes of Y are {got.dims}, but were {wanted.dims} in the fit. Transpose Y accordingly.")
    for mode in range(first_mode, len(wanted.dims)):
        own, fitted = got.coords[mode], wanted.coords[mode]
        if own is None or fitted is None or np.array_equal(own, fitted):
            continue
        differ = np.flatnonzero(own.astype(str) != fitted.astype(str))  # files hold labels of mixed types as text
        if differ.size:
            raise ValueError(
                f"The labels of mode {wanted.dims[mode]!r} of Y are not those of the fit: at position {differ[0]} "
                f"there is {own[differ[0]]!s}, but was {fitted[differ[0]]!s}. Select and order them accordingly."
            )


def feature_names(observations: Observations) -> NDArray[Any] | None:
    """The column labels of a matrix if they are strings, as scikit-learn defines feature names."""
    columns = observations.mode_labels[1]
    if columns is None or observations.order != 2 or not all(isinstance(name, str) for name in columns):
        return None
    return columns.astype(object)


def settings_of(options: Mapping[str, Any]) -> Settings:
    """The settings that options give, in whatever types they are given; raises where these are wrong."""
    given = dict(options) | {name: as_tuple(options[name]) for name in ("noise_modes", "outlier_modes")}
    if given["outlier_labels"] is not None:
        given["outlier_labels"] = np.asarray(given["outlier_labels"])
    return Settings(**given | {"modes": said_of_modes(given["modes"])})


def as_tuple(modes: Any) -> Any:
    """Any sequence of modes as a tuple; anything else is left for the settings to reject."""
    if isinstance(modes, str | bytes) or getattr(modes, "ndim", 1) == 0:
        return modes
    return tuple(modes) if isinstance(modes, Iterable) else modes


def said_of_modes(modes: Any) -> Any:
    """What a dictionary says of modes as pairs of a mode and a tuple of words; else left for the settings to reject.

    A dictionary that says nothing leaves all modes to the bound, as "auto" does.
    """
    if not isinstance(modes, Mapping):
        return modes
    if not modes:
        return "auto"
    return tuple((mode, (words,) if isinstance(words, str) else as_tuple(words)) for mode, words in modes.items())
