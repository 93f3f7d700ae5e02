"""The gallery tells the truth: every example runs without a warning, finds what was put in, and has its picture."""

import inspect
import re
import runpy
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

import brtf
from brtf import FitWarning, baselines, datasets, foreground, metrics, ranks, video

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# Of every example: the true rank, the standard deviation of the noise, and by which names it calls the low-rank part,
# the data, and the mask of what is wrong with them.
MADE = {
    "chromatography": (3, 0.02, "signal", "absorbance", "spoiled"),
    "completion": (3, 25.0, "traffic", "counts", "wrong"),
    "denoising": (4, 8.0, "house", "photograph", "spoiled"),
    "fluorescence": (3, 0.8, "pure", "intensity", "spoiled"),
    "forecast": (3, 3.0, "expected", "known", "wrong"),
    "sensors": (3, 0.15, "normal", "readings", "anomalous"),
    "video": (2, 3.0 * np.linalg.norm(video.clips.LUMA), "scene", "clip", "objects"),
}


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda path: path.stem)
def example(request):
    """What an example leaves behind, with the truth that it began with under common names."""
    backend = plt.get_backend()
    plt.switch_backend("agg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plt, "show", lambda: None)  # there is no window to show it in
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # a cap that is felt, where an example sets one
            left = runpy.run_path(str(request.param))
    rank, noise, low_rank, data, wrong = MADE[request.param.stem]
    data = left["clip"].tensor if data == "clip" else left[data]
    wrong = left[wrong].reshape(data.shape) if request.param.stem == "video" else left[wrong]
    if wrong.ndim < data.ndim:  # all colours of a pixel
        wrong = np.broadcast_to(wrong[..., None], data.shape)
    working = np.ones(data.shape, dtype=bool)
    if request.param.stem == "video":  # a stuck sensor shows the same in every frame, and is no part of the scene
        working &= ~left["truth"].dead[:, None]
    yield {
        "model": left["model"],
        "rank": rank,
        "noise": noise,
        "low_rank": left[low_rank],
        "data": data,
        "wrong": wrong,
        "seen": ~np.isnan(data) & working,
        "working": working,
        "figure": plt.gcf(),
    }
    plt.close("all")
    plt.switch_backend(backend)


def n_parameters(model):
    """Free numbers of a CP factorization: what a component's columns gain in size in one mode they lose in another."""
    return model.rank_ * (sum(model.shape_in_) - len(model.shape_in_) + 1)


class TestExample:
    def test_rank_is_the_true_one(self, example):
        assert example["model"].rank_ == example["rank"]

    def test_error_is_near_that_of_least_squares_with_the_truth(self, example):
        # Least squares on n clean entries errs by noise √(parameters / n) on average over them; what was hit by an
        # outlier is known less well: hence a quarter more. Missing entries, whole days of them among them, are as far
        # off as their standard deviations say. Those of wavelengths at which nothing was measured say: not known.
        clean = np.count_nonzero(example["seen"] & ~example["wrong"])
        ideal = example["noise"] * np.sqrt(n_parameters(example["model"]) / clean)
        mean, std = example["model"].predict(return_std=True)
        error, seen = mean - example["low_rank"], example["seen"]
        assert np.sqrt(np.mean(error[seen] ** 2)) < 1.25 * ideal
        known = example["working"] & (std < example["noise"])
        assert known.mean() > 0.95
        missing = known & ~seen
        assert not missing.any() or np.sqrt(np.mean((error / std)[missing] ** 2)) < 1.25

    def test_intervals_cover(self, example):
        # Entries share the parameters, so that as many of them are independent: three standard deviations of a share,
        # and 0.02 for what the model leaves out, such as sensors of a camera that differ in noise.
        used = example["working"]
        low, high = example["model"].predict_interval()
        found = metrics.coverage(low[used], high[used], example["low_rank"][used])
        assert abs(found - 0.95) < 0.02 + 3 * np.sqrt(0.95 * 0.05 / n_parameters(example["model"]))

    def test_outliers_are_found_as_if_the_truth_were_known(self, example):
        # Whoever knows the low-rank part and chooses the best threshold on the residual does this well; colours that
        # are judged together may do better. 0.03: what is learnt of noise and outliers is not quite the truth. Where
        # few are wrong, a couple of decisions more or less count.
        seen = example["seen"]
        ideal, _ = metrics.best_f_measure((example["data"] - example["low_rank"])[seen], example["wrong"][seen])
        flagged = example["model"].outlier_probability()[seen] > 0.5
        assert metrics.f_measure(flagged, example["wrong"][seen]) > ideal - 0.03 - 1 / example["wrong"][seen].sum()

    def test_picture_has_words(self, example):
        axes = example["figure"].axes
        words = {axis.get_title(place) or axis.get_ylabel() for axis in axes for place in ("left", "center")}
        assert len(words - {""}) >= 3


def test_every_example_is_in_the_readme_with_a_small_picture():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(docs/pictures/(\w+)\.png\)\]\(examples/(\w+)\.py\)", text)
    names = [path.stem for path in EXAMPLES]
    assert sorted(shown) == [(name, name) for name in names] and len(names) == 7
    sizes = {path.stem: path.stat().st_size for path in (ROOT / "docs" / "pictures").glob("*.png")}
    assert set(names) <= set(sizes)
    assert max(sizes[name] for name in names) < 60_000


@pytest.mark.parametrize(
    "module", [brtf, baselines, datasets, foreground, metrics, ranks, video], ids=lambda m: m.__name__
)
def test_reference_names_what_is_public(module):
    """Functions and classes one by one; modules by a section of their own."""
    text = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    for name in getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]:
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            assert f".. currentmodule:: brtf.{name}" in text
        elif name != "__version__":
            listed = re.search(rf"^\.\. (?:auto)?\w+:: {name}$", text, re.MULTILINE)
            assert listed or f".. automodule:: {module.__name__}\n   :members:" in text, name
