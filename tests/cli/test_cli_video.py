"""``brtf video``: what it writes, what it prints, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import brtf
from brtf import cli
from brtf.metrics import f_measure
from brtf.video import read_clip, write_clip

HEIGHT, WIDTH, FRAMES = 17, 20, 16
FILES = ["background.mp4", "foreground.mp4", "mask.mp4", "report.html", "result.brtf"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["video", *(str(argument) for argument in arguments)])


def run_json(*arguments: object) -> dict[str, Any]:
    outcome = run(*arguments, "--json")
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def scene() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A textured wall, a bright block that crosses it, and both with noise: wall (height, width), mask, frames."""
    rng = np.random.default_rng(0)
    wall = 80 + 30 * np.sin(np.arange(WIDTH) / 3) + 20 * np.cos(np.arange(HEIGHT) / 4)[:, None]
    mask = np.zeros((FRAMES, HEIGHT, WIDTH), dtype=bool)
    for time in range(FRAMES):
        mask[time, 5:11, time : time + 4] = True
    return wall, mask, np.where(mask, 220.0, wall) + rng.normal(0, 2, mask.shape)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scene") / "scene.npy"
    np.save(path, scene()[2])
    return path


def test_the_clips_show_background_foreground_and_mask(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    numbers = run_json(source, "--out", out)
    wall, mask, frames = scene()
    assert sorted(os.listdir(out)) == FILES
    assert sorted(numbers["written"]) == sorted(str(path) for path in out.iterdir())
    clips = {name: read_clip(out / name, gray=True) for name in FILES[:3]}
    images = {
        name: np.moveaxis(clip.values.reshape(clip.height, clip.width, FRAMES), 2, 0)[:, :HEIGHT, :WIDTH]
        for name, clip in clips.items()
    }
    # noise of 2 levels, averaged over 16 frames, and what the codec loses
    assert np.abs(images["background.mp4"] - wall).mean() < 3
    assert f_measure(images["mask.mp4"] > 127, mask) > 0.95
    # inside the block, whose edges the codec blurs
    inner = mask & np.roll(mask, 1, 1) & np.roll(mask, -1, 1) & np.roll(mask, 1, 2) & np.roll(mask, -1, 2)
    assert np.abs(images["foreground.mp4"] - frames)[inner].mean() < 5

    model = brtf.load(out / "result.brtf")
    assert model.shape_in_ == (HEIGHT * WIDTH, FRAMES)
    assert numbers["rank"] == model.rank_
    assert numbers["foreground_share"] == np.mean(model.outlier_probability() > 0.5)
    assert (numbers["width"], numbers["height"], numbers["frames"]) == (WIDTH, HEIGHT, FRAMES)
    assert numbers["frames_announced"] is None
    low, middle, high = numbers["noise_sd"]
    assert low <= middle <= high
    assert 1 < middle < 3  # 2 levels


def test_what_is_printed(source: Path, tmp_path: Path) -> None:
    outcome = run(source, "--out", tmp_path, "--clean", "--frames", "2:14", "--max-rank", 1)
    assert outcome.exit_code == 0
    assert outcome.stderr == ""
    for words in (
        "12 frames of 20 x 17 pixels",
        "rank        1 (capped at 1)",
        "noise",
        "foreground",
        "Wrote",
        "mask.mp4",
    ):
        assert words in outcome.stdout


def test_options_reach_the_clip(tmp_path: Path) -> None:
    colours = np.repeat(scene()[2][..., None], 3, axis=3) * [1.0, 0.8, 0.6]
    write_clip(tmp_path / "scene.mp4", np.clip(colours, 0, 255))
    options = ["--scale", 0.5, "--gray", "--drop", 0.3, "--seed", 1, "--frames", "0:16:2"]
    numbers = run_json(tmp_path / "scene.mp4", "--out", tmp_path / "out", *options)
    assert (numbers["width"], numbers["height"], numbers["frames"], numbers["channels"]) == (10, 9, 8, 1)
    assert (numbers["frames_announced"], numbers["frames_per_second"]) == (FRAMES, 12.5)
    assert numbers["max_rank"] == 2
    clip = read_clip(tmp_path / "scene.mp4", scale=0.5, gray=True, drop=0.3, seed=1, frames=slice(0, 16, 2))
    model = brtf.BRTF(2, noise="per-slice", random_state=1).fit(clip.tensor)
    assert numbers["bound"] == model.bound_
    assert numbers["n_observed"] == np.count_nonzero(~np.isnan(clip.values))


def test_not_converged_is_said_and_the_clips_are_kept(source: Path, tmp_path: Path) -> None:
    outcome = run(source, "--out", tmp_path, "--max-sweeps", 2)
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith("brtf: warning: Stopped after max_sweeps")
    assert sorted(os.listdir(tmp_path)) == FILES


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.mp4"], "absent.mp4 does not exist"),
        (["list.m3u8"], "playlist"),
        (["noise.mp4"], "not a video"),
        (["scene.npy", "--frames", "3"], "--frames must be like"),
        (["scene.npy", "--frames", "1:2:3:4"], "--frames must be like"),
        (["scene.npy", "--frames", "9:3"], "frames must go upwards"),
        (["scene.npy", "--scale", "2"], "scale must be"),
        (["scene.npy", "--drop", "1"], "drop must be"),
        (["scene.npy", "--max-rank", "0"], "max_rank"),
    ],
    ids=lambda arguments: " ".join(arguments) if isinstance(arguments, list) else "",
)
def test_bad_input_is_one_sentence(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scene.npy").symlink_to(source)
    Path("list.m3u8").write_text("#EXTM3U\nscene.mp4\n")
    Path("noise.mp4").write_bytes(np.random.default_rng(0).bytes(500))
    before = sorted(os.listdir())
    outcome = run(*arguments, "--out", "out")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("brtf: error: ")
    assert words in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert sorted(os.listdir()) == before


def test_a_place_to_write_is_needed(source: Path) -> None:
    outcome = run(source)
    assert outcome.exit_code == 2
    assert "--out" in outcome.stderr


def test_a_clip_that_is_cut_short_is_fitted_and_said(tmp_path: Path) -> None:
    write_clip(tmp_path / "whole.mp4", np.clip(scene()[2], 0, 255))
    content = (tmp_path / "whole.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: int(0.9 * len(content))])
    outcome = run(tmp_path / "cut.mp4", "--out", tmp_path / "out", "--gray", "--max-rank", 1)
    assert outcome.exit_code == 0
    assert f"of {FRAMES} announced; it may be cut short or damaged" in outcome.stderr
    assert f"({FRAMES} announced)" in outcome.stdout


def test_an_interrupt_leaves_nothing_but_a_checkpoint_behind(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(brtf.BRTF, "save", interrupt)
    outcome = run(source, "--out", tmp_path / "out", "--max-sweeps", 2)
    assert outcome.exit_code == 130
    assert os.listdir(tmp_path / "out") == ["checkpoint.brtf"]
