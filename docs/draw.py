"""Draw the pictures of the documents into docs/pictures: `python docs/draw.py [NAME …] [--data DIR]`."""

import argparse
import io
import re
import shutil
import tempfile
import tomllib
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from PIL import Image

import brtf

DOCS = Path(__file__).parent
DATA = DOCS.parents[1] / "shared" / "data"  # not part of the project; --data says where else
BLUE, ORANGE, GREEN, SKY, GREY = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#999999"
INDEX = ["shop", "item", "week"]


def sales():
    """The table of the README, its fit, and the reported numbers as a tensor, NaN where missing."""
    brought = brtf.datasets.toy_sales()
    data = brtf.Observations.from_frame(brought.table, index=INDEX, value="sold")
    model = brtf.BRTF(random_state=0).fit(data)
    reported = np.full(model.shape_in_, np.nan)
    reported[tuple(data.entry_coords())] = data.values
    return brought, model, reported


def heat(axis, image, title, top, **options):
    cmap = plt.get_cmap("viridis").with_extremes(bad="white", over=ORANGE)
    drawn = axis.imshow(image, aspect="auto", interpolation="nearest", cmap=cmap, vmin=0, vmax=top, **options)
    axis.set_title(title, loc="left", fontsize=10)
    return drawn


def sales_filled():
    """What was reported, and what the fit makes of it: one item in all shops, and one shop over the year."""
    brought, model, reported = sales()
    shops, items = (labels.tolist() for labels in model.result_.observations.labels.coords[:2])
    weeks = model.result_.observations.labels.coords[2]
    item = items.index("ice cream")
    top = 1.1 * brought.expected[:, item].max()
    figure = plt.figure(figsize=(9, 5.4), layout="constrained")
    above, below = figure.add_gridspec(2, 1, height_ratios=[1.15, 1])
    left, right = (figure.add_subplot(cell) for cell in above.subgridspec(1, 2))
    heat(left, reported[:, item], "What you have: gaps (white), typing errors (orange)", top)
    drawn = heat(right, model.result_.impute(replace_outliers=True)[:, item], "What you get: every number", top)
    for axis in (left, right):
        axis.set_yticks(range(0, 12, 2), shops[::2], fontsize=8)
        axis.set_xlabel("week")
    figure.colorbar(drawn, ax=right, label="ice cream sold", extend="max")

    listed = np.zeros(reported.shape, dtype=bool)
    for row in model.anomalies(q=0.05).itertuples():
        listed[shops.index(row.shop), items.index(row.item), np.searchsorted(weeks, row.week.to_datetime64())] = True
    # The series that shows most: seasonal, sold much while nothing was reported, and with a number that is listed.
    unseen = np.where(np.isnan(reported), brought.expected, 0).sum(axis=2)
    unseen *= brought.expected.std(axis=2) / brought.expected.mean(axis=2)
    shop, item = np.unravel_index(np.where(listed.any(axis=2), unseen, 0).argmax(), unseen.shape)
    axis = figure.add_subplot(below)
    low, high = (end[shop, item] for end in model.result_.interval(level=0.95, of="observation"))
    number, values, wrong = np.arange(len(weeks)), reported[shop, item], listed[shop, item]
    axis.fill_between(number, low, high, color=SKY, alpha=0.5, lw=0, label="where 95 % of the numbers should be")
    axis.plot(number, model.result_.low_rank()[shop, item], color=BLUE, lw=1.5, label="estimate")
    axis.plot(number, brought.expected[shop, item], color="black", lw=1, ls=(0, (4, 2)), label="truth")
    axis.plot(number[~wrong], values[~wrong], ".", color=GREEN, ms=6, label="reported")
    limit = 1.35 * brought.expected[shop, item].max()
    axis.plot(number[wrong], np.minimum(values[wrong], 0.95 * limit), "x", color=ORANGE, ms=8, mew=2, label="listed")
    for week in number[wrong & (values > limit)]:
        axis.text(week + 0.6, 0.95 * limit, f"{values[week]:,.0f}", color=ORANGE, va="center", fontsize=9)
    axis.set(xlabel="week", ylabel=f"{items[item]} sold in {shops[shop]}", xlim=(-0.5, 51.5), ylim=(0, limit))
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8, ncols=5)
    return figure


def sales_patterns():
    """The three patterns of the sales: how they run over shops, items and weeks."""
    _, model, _ = sales()
    shops, items, weeks = (labels.tolist() for labels in model.result_.observations.labels.coords)
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained", width_ratios=[1, 0.9, 1.3])
    colours = [GREY, ORANGE, BLUE]
    names = [f"pattern {number + 1}" for number in range(model.rank_)]
    for mode, (axis, labels) in enumerate(zip(axes[:2], (shops, items), strict=True)):
        factor = model.factors_[mode]
        places = np.arange(len(labels))
        for number in range(model.rank_):
            axis.barh(places + 0.27 * (number - 1), factor[:, number], 0.25, color=colours[number], label=names[number])
        axis.set_yticks(places, labels, fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"by {INDEX[mode]}", loc="left", fontsize=10)
        axis.set_xticks([])
    std = np.sqrt(np.einsum("irr->ir", model.factor_covariances_[2]))
    for number in range(model.rank_):
        mean, half = model.factors_[2][:, number], 2 * std[:, number]
        axes[2].fill_between(range(len(weeks)), mean - half, mean + half, color=colours[number], alpha=0.3, lw=0)
        axes[2].plot(mean, color=colours[number], label=names[number])
    axes[2].set_title("by week, ± 2 standard deviations", loc="left", fontsize=10)
    axes[2].set(xlabel="week", yticks=[])
    axes[2].legend(fontsize=8, loc="center left", bbox_to_anchor=(0.02, 0.68))
    return figure


def model_parts():
    """One table as the sum of patterns, outliers and noise."""
    _, model, reported = sales()
    item = 5
    data, smooth = reported[:, item], model.result_.low_rank()[:, item]
    wrong = np.zeros(model.shape_in_)
    wrong[tuple(model.result_.observations.entry_coords())] = model.result_.outliers_at_entries()
    wrong = wrong[:, item]
    noise = data - smooth - wrong
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.3), layout="constrained")
    top = smooth.max()
    for axis, image, title, sign in zip(
        axes,
        (data, smooth, wrong, noise),
        ("what was reported", "patterns: low rank", "outliers: rare, large", "noise: everywhere, small"),
        ("=", "+", "+", ""),
        strict=True,
    ):
        if axis in axes[:2]:
            heat(axis, image, title, top)
        else:
            drawn = {"cmap": "PuOr", "aspect": "auto", "interpolation": "nearest", "vmin": -top, "vmax": top}
            axis.imshow(image, **(drawn if axis is axes[2] else {**drawn, "vmin": -top / 8, "vmax": top / 8}))
            axis.set_title(title, loc="left", fontsize=10)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.text(1.06, 0.5, sign, transform=axis.transAxes, fontsize=18, va="center", ha="center")
    axes[0].set_ylabel("shops")
    axes[0].set_xlabel("weeks")
    return figure


def anomalies():
    """How far every number is off, and which of them a list at a false discovery rate of 5 % contains."""
    brought, model, _ = sales()
    table = brought.table
    residual = table["sold"].to_numpy() - model.predict(table[INDEX])
    listed = {tuple(row) for row in model.anomalies(q=0.05)[INDEX].itertuples(index=False)}
    found = np.array([tuple(row) in listed for row in table[INDEX].itertuples(index=False)])
    wrong = brought.wrong
    figure, axis = plt.subplots(figsize=(9, 3), layout="constrained")
    row = np.arange(len(table))
    size = np.sign(residual) * np.log10(1 + np.abs(residual))
    kinds = [(~found & ~wrong, ".", GREY, "fine, not listed"), (found & wrong, "x", ORANGE, "mistyped, listed")]
    kinds += [(~found & wrong, "o", BLUE, "mistyped, missed"), (found & ~wrong, "s", GREEN, "fine, listed")]
    for chosen, marker, colour, name in kinds:
        label = f"{name}: {np.count_nonzero(chosen):,}"
        axis.plot(row[chosen], size[chosen], marker, color=colour, ms=3 if marker == "." else 6, label=label)
    ticks = np.array([-1000, -100, -10, 0, 10, 100, 1000])
    axis.set_yticks(np.sign(ticks) * np.log10(1 + np.abs(ticks)), [f"{tick:,}" for tick in ticks])
    axis.set(xlabel="row of the table", ylabel="reported minus expected", xlim=(0, len(table)))
    axis.legend(loc="lower right", ncols=4, fontsize=8)
    return figure


def limits():
    """A pattern that stands has low rank; one that travels does not."""
    rng = np.random.default_rng(0)
    place, time = np.linspace(0, 1, 60)[:, None], np.linspace(0, 1, 80)
    standing = np.exp(-0.5 * ((place - 0.4) / 0.08) ** 2) * (1 + np.sin(12 * time))
    travelling = np.exp(-0.5 * ((place - time) / 0.04) ** 2)
    figure, axes = plt.subplots(1, 4, figsize=(9.6, 2.6), layout="constrained")
    for left, right, truth, name in [
        (axes[0], axes[1], standing, "stands"),
        (axes[2], axes[3], travelling, "travels"),
    ]:
        data = truth + rng.normal(0, 0.1, truth.shape)
        gaps = rng.random(truth.shape) < 0.6
        data[gaps] = np.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", brtf.FitWarning)
            model = brtf.BRTF(random_state=0).fit(data)
        error = np.linalg.norm((model.low_rank() - truth)[gaps]) / np.linalg.norm(truth[gaps])
        heat(left, data, f"{name}, 60 % missing", 1.4 * truth.max())
        heat(right, model.low_rank(), f"rank {model.rank_}, error {error:.0%}", 1.4 * truth.max())
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
    axes[0].set(xlabel="time", ylabel="place")
    return figure


def peers():
    """The measured tables of docs/peers.md as bars."""
    text = (DOCS / "peers.md").read_text(encoding="utf-8")
    figure, axes = plt.subplots(2, 2, figsize=(9, 4.8), layout="constrained")
    tasks = {"Gaps": "relative error", **dict.fromkeys(("Broken samples", "Moving objects"), "F-measure")}
    tasks["Odd samples between clusters"] = "F-measure"  # for which brtf is the wrong tool
    for axis, (task, column) in zip(axes.flat, tasks.items(), strict=True):
        section = re.search(rf"^### {task}\n(.*?)(?=^### |^Medians)", text, re.MULTILINE | re.DOTALL)[1]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"]
        place = rows[0].index(column)
        names = [re.sub(r"`|\(.*\)|, .*| of every pixel", "", row[0]) for row in rows[2:]]
        values = [float(row[place]) for row in rows[2:]]
        colours = [BLUE if "brtf" in name else GREY for name in names]
        axis.barh(range(len(values)), values, color=colours)
        axis.set_yticks(range(len(values)), [name.replace("BackgroundSubtractor", "") for name in names], fontsize=8)
        axis.invert_yaxis()
        better = "smaller" if "error" in column else "larger"
        axis.set_title(f"{task}\n{column}: {better} is better", loc="right", fontsize=9)
        for number, value in enumerate(values):
            axis.text(value, number, f" {value:.2f}", va="center", fontsize=8)
        axis.set_xlim(0, 1.25 * max(values))
    return figure


def inputs():
    """The same numbers as a long table, a wide table and a tensor."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained", width_ratios=[1, 1, 1.1])
    for axis in axes:
        axis.set(xlim=(0, 10), ylim=(0, 10))
        axis.axis("off")
    axes[0].set_title("long: a row per number", loc="left", fontsize=10)
    lines = [
        ("site", "day", "hour", "value"),
        ("A", "Mon", "0", "3.1"),
        ("A", "Mon", "2", "2.9"),
        ("B", "Tue", "1", "4.0"),
    ]
    for number, line in enumerate([*lines, ("…", "…", "…", "…")]):
        for place, word in enumerate(line):
            weight = "bold" if number == 0 else "normal"
            axes[0].text(0.2 + 2.5 * place, 8.5 - 1.6 * number, word, fontsize=9, weight=weight)
    axes[0].text(0.2, 0.3, "a gap is a row that is not there", fontsize=9, style="italic")
    axes[1].set_title("wide: a matrix", loc="left", fontsize=10)
    for row in range(4):
        for column in range(5):
            gap = (row, column) in {(0, 2), (2, 1), (3, 4)}
            colour = "white" if gap else plt.get_cmap("viridis")(0.15 + 0.04 * (row * 5 + column))
            axes[1].add_patch(Rectangle((1.2 + 1.5 * column, 7 - 1.6 * row), 1.4, 1.5, fc=colour, ec=GREY))
            if gap:
                axes[1].text(1.9 + 1.5 * column, 7.7 - 1.6 * row, "NaN", ha="center", va="center", fontsize=7)
        axes[1].text(0.3, 7.6 - 1.6 * row, "ABCD"[row], fontsize=9)
    axes[1].text(0.2, 0.3, "a gap is an empty cell, NaN, or masked", fontsize=9, style="italic")
    axes[2].set_title("tensor: site × day × hour", loc="left", fontsize=10)
    for layer in range(4, -1, -1):
        corner = (1 + 0.8 * layer, 2 + 0.8 * layer)
        colour = plt.get_cmap("viridis")(0.2 + 0.15 * layer)
        axes[2].add_patch(Rectangle(corner, 4.2, 3.2, fc=colour, ec="white", lw=1.5))
    axes[2].text(2.2, 1.2, "day", fontsize=9)
    axes[2].text(0.3, 3.2, "site", fontsize=9, rotation=90)
    axes[2].text(7.2, 3.2, "hour", fontsize=9, rotation=45)
    axes[2].text(0.2, 0.2, "xarray and NetCDF keep names and units", fontsize=9, style="italic")
    return figure


def _box(axis, x, y, width, height, words, colour):
    axis.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.08", fc=colour, ec="#444444"))
    axis.text(x + width / 2, y + height / 2, words, ha="center", va="center", fontsize=9)


def _arrow(axis, start, end, **options):
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color="#444444", **options))


def chunks():
    """How data larger than memory are fitted: chunks are read where they are, sums travel."""
    figure, axis = plt.subplots(figsize=(9, 2.7), layout="constrained")
    axis.set(xlim=(0, 12), ylim=(0, 4))
    axis.axis("off")
    for number in range(6):
        colour = plt.get_cmap("viridis")(0.25 + 0.1 * number)
        axis.add_patch(Rectangle((0.3, 3.3 - 0.55 * number), 2.2, 0.45, fc=colour, ec="white"))
    axis.text(1.4, 0.15, "chunks of the data:\nZarr, Dask, files", ha="center", fontsize=9)
    for number, y in enumerate((2.9, 1.8, 0.7)):
        _box(axis, 4.2, y, 2.0, 0.6, f"worker {number + 1}", "#e8f2fa")
        _arrow(axis, (2.6, 3.2 - 1.1 * number), (4.05, y + 0.35))
        _arrow(axis, (6.35, y + 0.3), (8.25, 2.1), connectionstyle="arc3,rad=0.0")
    axis.text(7.2, 3.3, "sums, never entries", ha="center", fontsize=9, style="italic")
    _box(axis, 8.4, 1.6, 2.9, 1.0, "the process that fits:\nfactors and a few numbers", "#fdf0e6")
    _arrow(axis, (9.8, 1.45), (5.3, 0.45), connectionstyle="arc3,rad=-0.25")
    axis.text(8.9, 0.45, "the factors, once a sweep", fontsize=9, style="italic")
    return figure


def cluster():
    """Who talks to whom in a cluster with TLS, and which certificate they show."""
    figure, axis = plt.subplots(figsize=(9, 2.6), layout="constrained")
    axis.set(xlim=(0, 12), ylim=(0, 4))
    axis.axis("off")
    _box(axis, 0.3, 1.6, 2.5, 1.0, "brtf fit\n--scheduler tls://…", "#fdf0e6")
    _box(axis, 4.7, 1.6, 2.4, 1.0, "dask scheduler\nport 8786", "#e8f2fa")
    for number, y in enumerate((2.9, 1.7, 0.5)):
        _box(axis, 9.2, y, 2.3, 0.7, f"dask worker {number + 1}", "#e8f2fa")
        _arrow(axis, (7.25, 2.1), (9.05, y + 0.35))
        _arrow(axis, (9.05, y + 0.35), (7.25, 2.1))
    _arrow(axis, (2.95, 2.1), (4.55, 2.1))
    _arrow(axis, (4.55, 2.1), (2.95, 2.1))
    axis.text(3.75, 2.35, "TLS", ha="center", fontsize=9)
    axis.text(8.1, 3.1, "TLS", ha="center", fontsize=9)
    axis.text(
        5.9, 0.35, "everybody shows cert.pem, signed by ca.pem;\nwho has none is not let in", ha="center", fontsize=9,
        style="italic",
    )  # fmt: skip
    return figure


def evaluation():
    """What held-out entries say of two models: error of single entries, and how often intervals hold them."""
    rng = np.random.default_rng(0)
    low_rank = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((length, 2)) for length in (24, 22, 20)))
    data = low_rank + rng.standard_t(2, low_rank.shape) * (0.02 + 0.3 * np.abs(low_rank))
    held = rng.random(data.shape) < 0.3
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", width_ratios=[1, 1.4])
    axes[0].plot([0, 1], [0, 1], color=GREY, lw=1, label="honest")
    levels = np.linspace(0.05, 0.99, 20)
    for name, colour, options in [("calibrated", BLUE, {}), ("no outliers", ORANGE, {"robust": False})]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = brtf.BRTF(max_rank=4, random_state=0, **options).fit(np.where(held, np.nan, data))
        shares = []
        for level in levels:
            low, high = model.predict_interval(level=level, of="observation")
            shares.append(np.mean((low <= data)[held] & (data <= high)[held]))
        axes[0].plot(levels, shares, "o-", color=colour, ms=3, label=name)
        if name == "calibrated":
            shown = np.flatnonzero(held)[:40]
            low, high = (end.flat[shown] for end in model.predict_interval(level=0.95, of="observation"))
            order = np.argsort(model.low_rank().flat[shown])
            place = np.arange(shown.size)
            axes[1].vlines(place, low[order], high[order], color=SKY, lw=4, label="95 % interval")
            axes[1].plot(place, model.low_rank().flat[shown][order], "_", color=BLUE, label="prediction")
            axes[1].plot(place, data.flat[shown][order], ".", color="black", label="held-out value")
    axes[0].set(title="How often intervals hold", xlabel="level asked for", ylabel="share of held-out entries")
    axes[1].set(title="Forty held-out entries", xlabel="entry, by prediction", ylabel="value")
    for axis in axes:
        axis.legend(fontsize=8)
    return figure


def claus():
    """The amino acids of Bro: spectra, and amounts against the concentrations that were weighed in."""
    from scipy.io import loadmat
    from scipy.optimize import linear_sum_assignment

    content = loadmat(DATA / "chemometrics" / "claus.mat")
    known = content["y"].astype(float)
    model = brtf.BRTF(max_rank=3, arrangement=None, random_state=0).fit(content["X"].astype(float))
    agreement = np.corrcoef(model.factors_[0].T, known.T)[:3, 3:]
    order = np.argsort(linear_sum_assignment(np.abs(agreement), maximize=True)[1])
    print("correlations", np.abs(agreement)[order, range(3)].round(4))
    figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
    names, colours = ["tryptophan", "tyrosine", "phenylalanine"], [BLUE, GREEN, ORANGE]
    grids = [np.arange(250, 451), np.arange(240, 301)]
    for axis, mode, grid, title in [(axes[0], 1, grids[0], "emission"), (axes[1], 2, grids[1], "excitation")]:
        for component, name, colour in zip(order, names, colours, strict=True):
            spectrum = model.factors_[mode][:, component]
            spectrum = spectrum * np.sign(spectrum[np.abs(spectrum).argmax()])
            std = np.sqrt(model.factor_covariances_[mode][:, component, component]) if _per_row(model, mode) else 0
            peak = spectrum.max()
            axis.fill_between(grid, (spectrum - 2 * std) / peak, (spectrum + 2 * std) / peak, color=colour, alpha=0.3)
            axis.plot(grid, spectrum / peak, color=colour, label=name)
        axis.set(title=f"{title} spectra", xlabel=f"{title} (nm)", yticks=[])
    axes[0].legend(fontsize=8)
    axes[2].plot([0, 1], [0, 1], color=GREY, lw=1)
    for number, (component, colour) in enumerate(zip(order, colours, strict=True)):
        amount, weighed = model.factors_[0][:, component], known[:, number]
        scale = (amount @ weighed) / (amount @ amount)
        axes[2].plot(weighed / weighed.max(), scale * amount / weighed.max(), "o", color=colour)
    axes[2].set(title="amounts, relative to the largest", xlabel="weighed in", ylabel="found")
    return figure


def _per_row(model, mode):
    return np.ndim(model.factor_covariances_[mode]) == 3


def _series(swing=1.2):
    """Fifteen series that follow two courses, with a gap in all of them; and the truth."""
    rng = np.random.default_rng(4)
    course = np.zeros((300, 2))
    for hour in range(1, 300):
        course[hour] = 0.985 * course[hour - 1] + rng.normal(0, 0.17, 2)
    course[:, 0] += swing * np.sin(2 * np.pi * np.arange(300) / 24)
    truth = course @ rng.normal(size=(2, 15))
    data = truth + rng.normal(0, 0.3, truth.shape)
    data[100:118] = np.nan
    return data, truth


def order_gap():
    """A gap in all series, without and with order."""
    data, truth = _series()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    shown = slice(60, 160)
    hours, column = np.arange(60, 160), int(np.abs(truth).mean(axis=0).argmax())
    for axis, options, title in zip(
        axes, ({"modes": None}, {"modes": "auto"}), ("rows in no order", "rows that follow each other"), strict=True
    ):
        model = brtf.BRTF(random_state=0, **options).fit(data[:240])
        low, high = (end[shown, column] for end in model.predict_interval())
        error = np.sqrt(np.mean((model.low_rank() - truth[:240])[100:118] ** 2))
        axis.axvspan(100, 118, color=GREY, alpha=0.2, lw=0)
        axis.fill_between(hours, low, high, color=SKY, alpha=0.6, lw=0, label="95 % interval")
        axis.plot(hours, model.low_rank()[shown, column], color=BLUE, label="estimate")
        axis.plot(hours, truth[shown, column], color="black", lw=1, ls=(0, (4, 2)), label="truth")
        axis.plot(hours, data[shown, column], ".", color=GREEN, ms=4, label="measured")
        axis.set_title(f"{title}: error in the gap {error:.2f}", loc="left", fontsize=10)
        axis.set_xlabel("hour")
    axes[0].legend(fontsize=8, loc="lower left")
    return figure


def order_forecast():
    """Two days ahead, against what came."""
    data, truth = _series(swing=3)
    ahead = brtf.BRTF(modes="auto", random_state=0).fit(data[:240]).forecast(48, mode=0, level=0.95)
    column = int(np.abs(truth).mean(axis=0).argmax())
    figure, axis = plt.subplots(figsize=(9, 3), layout="constrained")
    past, future = np.arange(150, 240), np.arange(240, 288)
    axis.plot(past, data[past, column], ".", color=GREEN, ms=4, label="measured")
    axis.fill_between(
        future, ahead.low[:, column], ahead.high[:, column], color=SKY, alpha=0.6, lw=0, label="95 % interval"
    )
    axis.plot(future, ahead.mean[:, column], color=BLUE, label="forecast")
    axis.plot(future, data[future, column], ".", color=ORANGE, ms=5, label="what came")
    axis.axvline(239.5, color=GREY, lw=1)
    axis.set(xlabel="hour", ylabel="one of fifteen series")
    axis.legend(fontsize=8, loc="upper left")
    return figure


def order_spectra():
    """Spectra from few readings, without and with order."""
    rng = np.random.default_rng(2)
    grid = np.arange(300, 500, 2.0)
    spectra = np.exp(-0.5 * ((grid[:, None] - [360, 420]) / [18, 25]) ** 2)
    truth = rng.uniform(0.2, 1, (20, 2)) @ spectra.T
    data = truth + rng.normal(0, 0.05, truth.shape)
    data[rng.random(truth.shape) < 0.9] = np.nan
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    for axis, options, title in zip(
        axes, ({"modes": None}, {"modes": "auto"}), ("no order", "with order"), strict=True
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = brtf.BRTF(random_state=0, **options).fit(data)
        low, high = model.predict_interval()
        error = np.linalg.norm(model.low_rank() - truth) / np.linalg.norm(truth)
        for sample, colour in ((0, BLUE), (7, ORANGE)):
            axis.fill_between(grid, low[sample], high[sample], color=colour, alpha=0.25, lw=0)
            axis.plot(grid, model.low_rank()[sample], color=colour, label=f"sample {sample}")
            axis.plot(grid, truth[sample], color="black", lw=1, ls=(0, (4, 2)))
            axis.plot(grid, data[sample], "o", color=colour, ms=4)
        axis.set_title(f"{title}: relative error {error:.2f}", loc="left", fontsize=10)
        axis.set_xlabel("wavelength (nm)")
    axes[0].plot([], [], color="black", lw=1, ls=(0, (4, 2)), label="truth")
    axes[0].legend(fontsize=8)
    return figure


def page(path):
    """The top of the report page about the sales, as a browser shows it."""
    from playwright.sync_api import sync_playwright

    _, model, _ = sales()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        model.report(Path(folder) / "page.html", names=["everyday", "summer", "winter"])
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1000, "height": 900})
        shown.goto((Path(folder) / "page.html").as_uri())
        stream = io.BytesIO(shown.screenshot())
        browser.close()
    keep(Image.open(stream).convert("RGB"), path)


def badge(path, left, right, colour):
    """A badge: what it is about, and what is true of it."""
    widths = [7 * len(words) + 12 for words in (left, right)]
    total = sum(widths)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="20" role="img" aria-label="{left}: {right}">'
        f'<rect width="{total}" height="20" rx="3" fill="#555"/>'
        f'<path d="M{widths[0]} 0h{widths[1] - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{widths[1] - 3}z" fill="{colour}"/>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{widths[0] / 2}" y="14">{left}</text>'
        f'<text x="{widths[0] + widths[1] / 2}" y="14">{right}</text></g></svg>\n',
        encoding="utf-8",
    )


def badges():
    """The badges of the README, from pyproject.toml."""
    settings = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    minors = re.findall(r"Python :: (3\.\d+)\b", "\n".join(project["classifiers"]))
    for name, left, right, colour in [
        ("version", "version", brtf.__version__, BLUE),
        ("python", "Python", f"{minors[0]}–{minors[-1]}", BLUE),
        ("licence", "licence", project["license"], "#44860f"),
        ("types", "types", "mypy strict" if settings["tool"]["mypy"]["strict"] else "mypy", "#44860f"),
    ]:
        badge(DOCS / "pictures" / f"badge-{name}.svg", left, right, colour)


PICTURES = {
    "sales-filled": sales_filled,
    "sales-patterns": sales_patterns,
    "model-parts": model_parts,
    "anomalies": anomalies,
    "limits": limits,
    "peers": peers,
    "inputs": inputs,
    "chunks": chunks,
    "cluster": cluster,
    "evaluation": evaluation,
    "claus": claus,
    "order-gap": order_gap,
    "order-forecast": order_forecast,
    "order-spectra": order_spectra,
    "page": page,
}
WIDTH = 900


def save(figure, path):
    stream = io.BytesIO()
    figure.savefig(stream, dpi=200)
    keep(Image.open(stream).convert("RGB"), path)


def keep(picture, path):
    """Write a picture 900 pixels wide, in 256 colours."""
    picture = picture.resize((WIDTH, round(WIDTH * picture.height / picture.width)), Image.Resampling.LANCZOS)
    few = picture.quantize(256, Image.Quantize.MEDIANCUT, kmeans=3, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    plt.switch_backend("Agg")
    badges()
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PICTURES)}; all if none is named")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with chemometrics/claus.mat")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PICTURES]
    if unknown:
        parser.error(f"there is no picture {unknown[0]!r}")
    DATA = options.data
    here = [name for name in PICTURES if name != "claus" or DATA.exists()]
    for name in options.names or here:
        path = DOCS / "pictures" / f"{name}.png"
        page(path) if name == "page" else save(PICTURES[name](), path)
        plt.close("all")
