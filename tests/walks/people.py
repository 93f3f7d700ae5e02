"""What the people of the walks bring: files and arrays with a known truth."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from click.testing import CliRunner

from brtf import cli
from pages import Page


def brtf_command(*words: object) -> str:
    """What a command prints; it must end with exit code 0."""
    done = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def page_text(path: Any) -> str:
    """The words of a page that carries everything it needs."""
    markup = path.read_text(encoding="utf-8")
    page = Page(markup)
    loaded = [
        attributes.get(name) or ""
        for tag, attributes in page.elements
        for name in ("src", "href")
        if tag in ("script", "img", "link", "iframe", "video")
    ]
    assert [address for address in loaded if address and not address.startswith(("data:", "#"))] == []
    return page.text


@dataclass
class Sales:
    """Pieces sold by shop, item and week: a long table with gaps and wrong values."""

    table: Any
    truth: np.ndarray
    wrong: set

    INDEX = ("shop", "item", "week")


def sales() -> Sales:
    import pandas as pd

    rng = np.random.default_rng(0)
    shops = [f"shop {number:02d}" for number in range(12)]
    items = ["apples", "bread", "cheese", "dates", "eggs", "fish", "garlic"]
    weeks = pd.date_range("2024-01-01", periods=30, freq="7D")
    seasons = 1 + 0.5 * np.sin(np.arange(30)[:, None] / [4, 7])
    truth = 3 * np.einsum("ir,jr,kr->ijk", rng.gamma(4, 1, (12, 2)), rng.gamma(4, 1, (7, 2)), seasons)
    table = pd.DataFrame(
        [(shop, item, week) for shop in shops for item in items for week in weeks], columns=list(Sales.INDEX)
    )
    table["sold"] = (truth + rng.normal(0, 3, truth.shape)).ravel()
    wrong = rng.choice(len(table), 25, replace=False)
    table.loc[wrong, "sold"] *= 4
    table = table.drop(index=rng.choice(len(table), 500, replace=False)).reset_index(drop=True)
    kept = {tuple(row) for row in table[list(Sales.INDEX)].itertuples(index=False)}
    bad = {(shops[i], items[j], weeks[k]) for i, j, k in zip(*np.unravel_index(wrong, truth.shape), strict=True)}
    return Sales(table, truth, bad & kept)


def temperature() -> tuple[Any, Any]:
    """A field in kelvin, time × latitude × longitude, with clouds and their cold edges; and the truth."""
    import pandas as pd
    import xarray as xr

    rng = np.random.default_rng(3)
    time = pd.date_range("2020-01-01", periods=36, freq="MS")
    latitude, longitude = np.linspace(40, 50, 9), np.linspace(0, 20, 12)
    season = np.sin(2 * np.pi * (np.arange(36) - 3) / 12)
    amplitude = np.outer(np.linspace(6, 12, 9), np.linspace(0.7, 1.3, 12))
    level = 288 - np.outer(np.linspace(0, 8, 9), np.ones(12))
    field = level + season[:, None, None] * amplitude
    truth = xr.DataArray(
        field,
        dims=("time", "latitude", "longitude"),
        coords={
            "time": time,
            "latitude": latitude,
            "longitude": longitude,
            "month": ("time", time.month),
            "height": 2.0,
        },
        attrs={"units": "K", "long_name": "air temperature"},
        name="t2m",
    )
    measured = (truth + rng.normal(0, 0.3, truth.shape)).astype(np.float32)
    measured.attrs = truth.attrs
    edges = rng.choice(truth.size, 20, replace=False)
    measured.values.flat[edges] -= 8
    return measured.where(rng.uniform(size=truth.shape) > 0.3), truth


def mixtures() -> dict[str, np.ndarray]:
    """Fluorescence of mixtures: samples × emission × excitation, scattered light left out, some readings spoiled."""
    rng = np.random.default_rng(1)
    emission, excitation = np.arange(260, 460, 6.0), np.arange(230, 310, 4.0)

    def bands(grid, centres, width):
        return np.exp(-0.5 * ((grid[:, None] - centres) / width) ** 2)

    emissions, excitations = bands(emission, [290, 320, 365], 18), bands(excitation, [250, 272, 288], 11)
    concentrations = rng.uniform(0.2, 1, (12, 3)) * [60, 100, 100]
    pure = np.einsum("ir,jr,kr->ijk", concentrations, emissions, excitations)
    intensity = pure + rng.normal(0, 0.5, pure.shape)
    spoiled = rng.uniform(size=pure.shape) < 0.02
    intensity[spoiled] += rng.exponential(40, spoiled.sum())
    intensity[:, emission[:, None] - excitation < 12] = np.nan
    return {
        "intensity": intensity,
        "concentrations": concentrations,
        "emissions": emissions,
        "excitations": excitations,
    }


def scattering() -> tuple[Any, np.ndarray]:
    """Landscapes of mixtures as the instrument gives them, with scattered light; and the emission spectra."""
    import xarray as xr

    rng = np.random.default_rng(2)
    emission, excitation = np.arange(272, 500, 6.0), np.arange(230, 330, 6.0)
    bands = [(emission, [300, 340, 400], 22), (excitation, [250, 275, 300], 14)]
    spectra = [np.exp(-0.5 * ((grid[:, None] - centres) / width) ** 2) for grid, centres, width in bands]
    pure = np.einsum("ir,jr,kr->ijk", rng.uniform(20, 100, (10, 3)), *spectra)
    lines = [(excitation, 150), (2 * excitation, 60), (1 / (1 / excitation - 3400e-7), 8)]
    light = sum(height * np.exp(-0.5 * ((emission[:, None] - line) / 5) ** 2) for line, height in lines)
    measured = pure + light * rng.uniform(0.5, 1.5, (10, 1, 1)) + rng.normal(0, 0.5, pure.shape)
    coords = {"emission": emission, "excitation": excitation}
    landscapes = xr.DataArray(measured, coords, ("sample", "emission", "excitation"), "fluorescence", {"units": "RU"})
    return landscapes, spectra[0]


def alike(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Largest cosine of every true column with a found one."""
    found, true = (columns / np.linalg.norm(columns, axis=0) for columns in (found, true))
    return np.abs(true.T @ found).max(axis=1)
