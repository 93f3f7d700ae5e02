"""A table as an analyst has it, with a known truth: shops, items, weeks, gaps and typing errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import is_whole
from brtf.data.extras import require

SHOPS = ("Aarhus", "Bergen", "Cork", "Delft", "Essen", "Faro", "Ghent", "Hull", "Ivrea", "Jena", "Krakow", "Lille")
ITEMS = ("bread", "cheese", "eggs", "fish", "grapes", "ice cream", "soup", "tea")


@dataclass(frozen=True, eq=False)
class ToySales:
    """A synthetic table of sales and its ground truth.

    Attributes
    ----------
    table : pandas.DataFrame
        Columns ``shop``, ``item``, ``week`` and ``sold``, a row per number that was reported.
    expected : ndarray of shape (shops, items, weeks)
        What was to be sold, without chance and errors, reported or not; shops and items in alphabetical order.
    wrong : ndarray of bool
        For every row of the table, True if the number was mistyped.
    """

    table: Any
    expected: NDArray[np.float64]
    wrong: NDArray[np.bool_]


def toy_sales(*, weeks: int = 52, missing: float = 0.2, seed: int = 0) -> ToySales:
    """Weekly sales of eight items in twelve shops: everyday shopping, summer, winter; gaps and typing errors.

    Sales are rounded and vary by about 5 around what was expected. One number in a hundred was mistyped, with a zero
    too many or a digit too few. Single numbers are missing, and four shops reported nothing for eight weeks.

    Parameters
    ----------
    weeks : int
        Length of the table, at least 16. The first week is that of 1 January 2024.
    missing : float
        Fraction of the other numbers that are missing, below 1.
    seed : int
        The same seed gives the same table.

    Returns
    -------
    ToySales
    """
    if not is_whole(weeks) or weeks < 16:
        raise ValueError(f"weeks must be an integer of at least 16, got {weeks!r}.")
    if not 0 <= missing < 1:
        raise ValueError(f"missing must be a fraction of at least 0 and below 1, got {missing!r}.")
    pandas = require("pandas", extra="label", purpose="toy_sales()")
    rng = np.random.default_rng(seed)

    season = np.cos(2 * np.pi * (np.arange(weeks) - 28) / 52)  # warmest in the middle of July
    by_week = np.column_stack([np.full(weeks, 1.0), np.maximum(season, 0), np.maximum(-season, 0)])
    by_week *= rng.normal(1, 0.04, by_week.shape)
    by_item = np.array(  # everyday, summer, winter
        [[9, 0, 0], [5, 1, 3], [6, 0, 1], [4, 2, 0], [1, 7, 0], [1, 12, 0], [2, 0, 9], [3, 0, 5]], dtype=float
    )
    by_shop = rng.uniform(8, 25, (len(SHOPS), 1)) * rng.uniform(0.5, 1.5, (len(SHOPS), 3))
    expected = np.einsum("ir,jr,kr->ijk", by_shop, by_item, by_week)
    sold = np.round(np.maximum(expected + rng.normal(0, 5, expected.shape), 0))

    wrong = rng.random(sold.shape) < 0.01
    sold[wrong] = np.where(rng.random(wrong.sum()) < 0.7, sold[wrong] * 10, np.floor(sold[wrong] / 10))
    reported = rng.random(sold.shape) >= missing
    for shop in rng.choice(len(SHOPS), 4, replace=False):
        start = rng.integers(weeks - 8)
        reported[shop, :, start : start + 8] = False

    shop, item, week = np.nonzero(reported)
    dates = pandas.date_range("2024-01-01", periods=weeks, freq="7D")
    table = pandas.DataFrame(
        {
            "shop": np.array(SHOPS, dtype=object)[shop],
            "item": np.array(ITEMS, dtype=object)[item],
            "week": dates[week],
            "sold": sold[reported],
        }
    )
    return ToySales(table=table, expected=expected, wrong=wrong[reported])
