"""Where the estimator meets scikit-learn's conventions: seeds, second arguments, feature names, names used twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.observations import Observations


class OptionAndMethod:
    """One name for an option of the constructor and a method of the fitted model.

    ``BRTF(outliers=False)`` says that the model has no outliers; ``model.outliers()`` returns those that were found.
    ``BRTF(transform="log")`` fits the logarithm of Y; ``model.transform(Y)`` returns loadings.
    The option lives in the instance's ``__dict__`` and is read by ``get_params``; the attribute is the method.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self.method if instance is None else self.method.__get__(instance, owner)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value


class UnavailableError(AttributeError, ValueError):
    """A method that the options leave out: absent to ``hasattr``, as scikit-learn asks, and a wrong value to a user."""


def generator(random_state: Any) -> np.random.Generator:
    """One Generator from whatever scikit-learn users pass as a seed."""
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


def check_shape(observations: Observations, fitted: Observations, *, same_rows: bool) -> None:
    """Whether other data fit those of the model, in the words scikit-learn uses for matrices."""
    got, wanted = observations.shape, fitted.shape
    if got[1:] != wanted[1:]:
        if len(got) == len(wanted) == 2:
            raise ValueError(f"X has {got[1]} features, but BRTF is expecting {wanted[1]} features as input.")
        raise ValueError(f"Y has shape {got}, but the modes after the first must be {wanted[1:]} as fitted.")
    if same_rows and got != wanted:
        raise ValueError(f"Y has shape {got}, but the model was fitted to {wanted}: mark what is not observed as NaN.")
    names, wanted_names = feature_names(observations), feature_names(fitted)
    if names is not None and wanted_names is not None and not np.array_equal(names, wanted_names):
        raise ValueError(
            f"The feature names should match those that were passed during fit: {list(wanted_names)}, "
            f"got {list(names)}. Select and order the columns accordingly."
        )


def feature_names(observations: Observations) -> NDArray[Any] | None:
    """The column labels of a matrix if they are strings, as scikit-learn defines feature names."""
    columns = None if observations.labels is None else observations.labels.coords[1]
    if columns is None or observations.order != 2 or not all(isinstance(name, str) for name in columns):
        return None
    return columns.astype(object)


def as_tuple(modes: Any) -> Any:
    """Any sequence of modes as a tuple; what is none is left for the settings to refuse."""
    if isinstance(modes, str) or getattr(modes, "ndim", 1) == 0:
        return modes
    return tuple(modes) if isinstance(modes, Iterable) else modes
