"""The judge: whether the bound prefers one point to another, by as much as the change must be worth."""

from __future__ import annotations

from typing import Protocol

WORTH = 1.0
"""Nats by which a change of the structure must raise the bound."""


class Bounded(Protocol):
    """Anything that has a bound."""

    @property
    def bound(self) -> float: ...


def judge(trial: Bounded, best: Bounded, worth: float = 0.0) -> bool:
    """Whether the trial is kept: its bound is higher by at least what the change must be worth. NaN is not."""
    return bool(trial.bound - best.bound >= worth)
