"""The judge: whether the bound prefers one point to another by at least the required gain."""

from __future__ import annotations

from typing import Protocol

WORTH = 1.0
"""Gain of the bound in nats that a structural change must reach."""


class Bounded(Protocol):
    """Anything that has a bound."""

    @property
    def bound(self) -> float: ...


def judge(trial: Bounded, best: Bounded, worth: float = 0.0) -> bool:
    """Whether the trial is accepted: its bound is higher by at least ``worth``. A NaN bound is rejected."""
    return bool(trial.bound - best.bound >= worth)
