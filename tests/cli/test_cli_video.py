"""``brtf video``: what it writes, what it prints, and how it ends."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

import brtf
from brtf import cli
from brtf.cli.video import find_objects
from brtf.data.signals import Terminated, signals_later
from brtf.foreground import StreamPlan, boxes, stream
from brtf.metrics import f_measure
from brtf.video import read_clip, write_clip
from brtf.video.clips import Footage
from brtf.video.stream import decided_blocks
from pages import Page

HEIGHT, WIDTH, FRAMES = 33, 40, 32
SMALL_HEIGHT, SMALL_WIDTH, SMALL_FRAMES = 17, 20, 16
FILES = [
    "background.png",
    "boxes.csv",
    "boxes.json",
    "boxes.mp4",
    "foreground.mp4",
    "mask",
    "mask.mp4",
    "report.html",
]
LOW_RANK_FILES = ["background.mp4", "foreground.mp4", "mask.mp4", "report.html", "result.brtf"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["video", *(str(argument) for argument in arguments)])


def run_json(*arguments: object) -> dict[str, Any]:
    outcome = run(*arguments, "--json")
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


Scene = tuple[np.ndarray, np.ndarray, np.ndarray]


def walk(frames: int, height: int, width: int, rows: slice, length: int) -> Scene:
    """A textured wall, a bright block that crosses it, and both with noise: wall (height, width), mask, frames."""
    rng = np.random.default_rng(0)
    wall = 80 + 30 * np.sin(np.arange(width) / 3) + 20 * np.cos(np.arange(height) / 4)[:, None]
    mask = np.zeros((frames, height, width), dtype=bool)
    for time in range(frames):
        mask[time, rows, time : time + length] = True
    return wall, mask, np.where(mask, 220.0, wall) + rng.normal(0, 2, mask.shape)


def scene() -> Scene:
    return walk(FRAMES, HEIGHT, WIDTH, slice(10, 20), 6)


def small_scene() -> Scene:
    """For the low-rank fit, which takes longer."""
    return walk(SMALL_FRAMES, SMALL_HEIGHT, SMALL_WIDTH, slice(5, 11), 4)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scene") / "scene.npy"
    np.save(path, scene()[2])
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "scene.npy"
    np.save(path, small_scene()[2])
    return path


def frames_of(path: Path, height: int = HEIGHT) -> np.ndarray:
    """The grey levels of a clip (frames, height, width), without the line that the format adds."""
    clip = read_clip(path, gray=True)
    return np.moveaxis(clip.values.reshape(clip.height, clip.width, clip.n_frames), 2, 0)[:, :height]


def inside(mask: np.ndarray) -> np.ndarray:
    """The mask without its edges, which the codec blurs."""
    return mask & np.roll(mask, 1, 1) & np.roll(mask, -1, 1) & np.roll(mask, 1, 2) & np.roll(mask, -1, 2)


def test_what_moves_is_written_in_every_form(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    numbers = run_json(source, "--out", out)
    wall, mask, frames = scene()
    assert sorted(os.listdir(out)) == FILES
    assert sorted(numbers["written"]) == sorted(str(path) for path in out.iterdir())
    found = brtf.foreground(frames)
    exact = np.moveaxis(found.mask, 2, 0)
    assert f_measure(exact, mask) > 0.9
    masks = np.stack([np.asarray(Image.open(path)) for path in sorted((out / "mask").iterdir())])
    np.testing.assert_array_equal(masks, 255 * exact)
    assert f_measure(frames_of(out / "mask.mp4") > 127, exact) > 0.95
    background = np.asarray(Image.open(out / "background.png")).astype(float)
    np.testing.assert_allclose(background, found.background[:, :, 0], atol=0.5001)
    assert np.abs(background - wall).mean() < 3
    assert np.abs(frames_of(out / "foreground.mp4") - frames)[inside(exact)].mean() < 5
    assert (numbers["objects"], numbers["foreground_share"]) == (boxes(found.mask)["frame"].size, found.mask.mean())
    assert numbers["decisions"] == found.sentences()
    assert (numbers["width"], numbers["height"], numbers["frames"]) == (WIDTH, HEIGHT, FRAMES)
    page = Page((out / "report.html").read_text())
    for sentence in found.sentences():
        assert sentence in page.text
    assert page.count("svg") == 2
    assert page.count("tr") == 1 + FRAMES


def test_boxes_carry_the_numbers_of_the_frames(source: Path, tmp_path: Path) -> None:
    numbers = run_json(source, "--out", tmp_path, "--frames", "2:14:3")
    _, _, frames = scene()
    found = brtf.foreground(frames[2:14:3])
    expected = boxes(found.mask, [2, 5, 8, 11])
    with open(tmp_path / "boxes.csv", newline="") as file:
        rows = [{name: int(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
    assert rows == [dict(zip(expected, row, strict=True)) for row in zip(*expected.values(), strict=True)]
    assert len(rows) == numbers["objects"] > 0
    document = json.loads((tmp_path / "boxes.json").read_text())
    assert [image["id"] for image in document["images"]] == [2, 5, 8, 11]
    assert all((tmp_path / image["file_name"]).exists() for image in document["images"])
    assert [
        {"frame": one["image_id"], **dict(zip(("x", "y", "width", "height"), one["bbox"], strict=True))}
        for one in document["annotations"]
    ] == [{name: cell for name, cell in row.items() if name != "area"} for row in rows]
    drawn = read_clip(tmp_path / "boxes.mp4")
    colours = drawn.values.reshape(drawn.height, drawn.width, 3, 4)
    for row in rows:
        k, top, left = (row["frame"] - 2) // 3, row["y"], row["x"]
        edge = colours[top, left : left + row["width"], :, k].mean(axis=0)
        assert edge[0] - edge[2] > 30  # orange on grey, blurred by the codec


def test_the_decisions_are_printed(source: Path, tmp_path: Path) -> None:
    outcome = run(source, "--out", tmp_path, "--frames", "2:14")
    assert outcome.exit_code == 0
    assert outcome.stderr == ""
    for words in ("12 frames of 40 x 33 pixels", "The camera stood still", "The light", "objects", "Wrote", "mask.mp4"):
        assert words in outcome.stdout


def test_a_second_run_replaces_every_mask_if_asked(source: Path, tmp_path: Path) -> None:
    run_json(source, "--out", tmp_path)
    outcome = run(source, "--out", tmp_path, "--frames", "0:10")
    assert outcome.exit_code == 2
    assert "Pass --overwrite" in outcome.stderr
    assert len(os.listdir(tmp_path / "mask")) == FRAMES
    run_json(source, "--out", tmp_path, "--frames", "0:10", "--overwrite")
    assert len(os.listdir(tmp_path / "mask")) == 10


def test_spectral_bands_and_missing_pixels_are_taken(tmp_path: Path) -> None:
    bands = scene()[2][..., None] * np.linspace(0.5, 1.0, 5)
    np.save(tmp_path / "bands.npy", bands)
    numbers = run_json(tmp_path / "bands.npy", "--out", tmp_path / "out", "--drop", 0.2, "--seed", 3)
    assert numbers["channels"] == 5
    found = brtf.foreground(bands, drop=0.2, seed=3)
    assert numbers["foreground_share"] == found.mask.mean()
    assert np.asarray(Image.open(tmp_path / "out" / "background.png")).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (["--max-rank", 1], "--max-rank is an option"),
        (["--clean", "--tol", 1e-3], "--clean, --tol are options"),
        (["--resume", "c.brtf"], "--resume is an option"),
    ],
)
def test_options_of_the_low_rank_fit_need_it(source: Path, tmp_path: Path, option: list[object], named: str) -> None:
    outcome = run(source, "--out", tmp_path / "out", *option)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert f"{named} of the low-rank fit. Add --low-rank" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_the_clips_of_the_low_rank_fit(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    numbers = run_json(small, "--out", out, "--low-rank")
    wall, mask, frames = small_scene()
    assert sorted(os.listdir(out)) == LOW_RANK_FILES
    assert sorted(numbers["written"]) == sorted(str(path) for path in out.iterdir())
    images = {name: frames_of(out / name, SMALL_HEIGHT) for name in LOW_RANK_FILES[:3]}
    # noise of 2 levels, averaged over 16 frames, and what the codec loses
    assert np.abs(images["background.mp4"] - wall).mean() < 3
    assert f_measure(images["mask.mp4"] > 127, mask) > 0.95
    assert np.abs(images["foreground.mp4"] - frames)[inside(mask)].mean() < 5

    model = brtf.load(out / "result.brtf")
    assert model.shape_in_ == (SMALL_HEIGHT * SMALL_WIDTH, SMALL_FRAMES)
    assert numbers["rank"] == model.rank_
    assert numbers["foreground_share"] == np.mean(model.outlier_probability() > 0.5)
    assert (numbers["width"], numbers["height"], numbers["frames"]) == (SMALL_WIDTH, SMALL_HEIGHT, SMALL_FRAMES)
    assert numbers["frames_announced"] is None
    low, middle, high = numbers["noise_sd"]
    assert low <= middle <= high
    assert 1 < middle < 3  # 2 levels


def test_what_the_low_rank_fit_prints(small: Path, tmp_path: Path) -> None:
    outcome = run(small, "--out", tmp_path, "--low-rank", "--clean", "--frames", "2:14", "--max-rank", 1)
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
    colours = np.repeat(small_scene()[2][..., None], 3, axis=3) * [1.0, 0.8, 0.6]
    write_clip(tmp_path / "scene.mp4", np.clip(colours, 0, 255))
    options = ["--scale", 0.5, "--gray", "--drop", 0.3, "--seed", 1, "--frames", "0:16:2"]
    numbers = run_json(tmp_path / "scene.mp4", "--out", tmp_path / "out", "--low-rank", *options)
    assert (numbers["width"], numbers["height"], numbers["frames"], numbers["channels"]) == (10, 9, 8, 1)
    assert (numbers["frames_announced"], numbers["frames_per_second"]) == (SMALL_FRAMES, 12.5)
    assert numbers["max_rank"] == 2
    clip = read_clip(tmp_path / "scene.mp4", scale=0.5, gray=True, drop=0.3, seed=1, frames=slice(0, 16, 2))
    model = brtf.BRTF(2, noise="per-slice", modes=None, random_state=1).fit(clip.tensor)
    assert numbers["bound"] == model.bound_
    assert numbers["n_observed"] == np.count_nonzero(~np.isnan(clip.values))


def test_not_converged_is_said_and_the_clips_are_kept(small: Path, tmp_path: Path) -> None:
    outcome = run(small, "--out", tmp_path, "--low-rank", "--max-sweeps", 2)
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith("brtf: warning: Stopped after max_sweeps")
    assert sorted(os.listdir(tmp_path)) == LOW_RANK_FILES


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
        (["scene.npy", "--low-rank", "--max-rank", "0"], "max_rank"),
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


def test_a_clip_that_is_cut_short_is_used_and_said(tmp_path: Path) -> None:
    write_clip(tmp_path / "whole.mp4", np.clip(scene()[2], 0, 255))
    content = (tmp_path / "whole.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: int(0.9 * len(content))])
    outcome = run(tmp_path / "cut.mp4", "--out", tmp_path / "out", "--gray")
    assert outcome.exit_code == 0
    assert f"of {FRAMES} announced; it may be cut short or damaged" in outcome.stderr
    assert f"({FRAMES} announced)" in outcome.stdout


def test_an_interrupt_leaves_nothing_but_a_checkpoint_behind(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(brtf.BRTF, "save", interrupt)
    outcome = run(small, "--out", tmp_path / "out", "--low-rank", "--max-sweeps", 2)
    assert outcome.exit_code == 130
    assert os.listdir(tmp_path / "out") == ["checkpoint.brtf"]


def test_an_interrupt_while_objects_are_written_leaves_nothing_behind(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("brtf.video.writing.boxes_document", interrupt)
    assert run(source, "--out", tmp_path / "out").exit_code == 130
    assert os.listdir(tmp_path) == []


class TestBlocks:
    """A clip that is too long to be decided as a whole: here every clip is."""

    PLAN = StreamPlan(block=8, memory=12, whole_bytes=0)

    def test_files_are_those_of_the_blocks(self, source: Path, tmp_path: Path) -> None:
        code, numbers = find_objects(tmp_path / "out", Footage(source, frames=slice(2, None)), "a", plan=self.PLAN)
        assert (code, numbers["blocks"], numbers["frames"]) == (0, 4, FRAMES - 2)
        mask = np.concatenate([one.mask for one in stream(scene()[2][2:], plan=self.PLAN)], axis=2)
        images = sorted((tmp_path / "out" / "mask").iterdir())
        assert [path.name for path in images] == [f"{k:06d}.png" for k in range(2, FRAMES)]
        masks = np.stack([np.asarray(Image.open(path)) for path in images], axis=2)
        np.testing.assert_array_equal(masks, 255 * mask)
        expected = boxes(mask, range(2, FRAMES))
        with open(tmp_path / "out" / "boxes.csv", newline="") as file:
            rows = [{name: int(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
        assert rows == [dict(zip(expected, row, strict=True)) for row in zip(*expected.values(), strict=True)]
        assert sorted(os.listdir(tmp_path / "out")) == FILES
        for name in ("mask", "foreground", "boxes"):
            assert read_clip(tmp_path / "out" / f"{name}.mp4").n_frames == FRAMES - 2
        page = Page((tmp_path / "out" / "report.html").read_text())
        assert "decided in 4 blocks, each together with 12 frames" in page.text
        assert numbers["foreground_share"] == mask.mean()
        assert page.count("tr") == 1 + FRAMES - 2

    def test_an_interrupt_keeps_the_blocks_that_are_finished(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupted(*arguments: Any) -> Any:
            for number, part in enumerate(decided_blocks(*arguments)):
                if number == 2:
                    raise Terminated(signal.SIGTERM)
                yield part

        monkeypatch.setattr("brtf.video.stream.decided_blocks", interrupted)
        code, numbers = find_objects(tmp_path / "out", Footage(source), "a", plan=self.PLAN)
        assert (code, numbers["blocks"], numbers["frames"]) == (143, 2, 16)
        assert "interrupted after 16 of 32 frames" in capsys.readouterr().err
        assert sorted(os.listdir(tmp_path / "out")) == FILES
        assert len(os.listdir(tmp_path / "out" / "mask")) == read_clip(tmp_path / "out" / "mask.mp4").n_frames == 16
        assert len(json.loads((tmp_path / "out" / "boxes.json").read_text())["images"]) == 16

    @pytest.mark.parametrize(("error", "after"), [(KeyboardInterrupt, 0), (OSError, 2)])
    def test_an_error_keeps_nothing_nor_does_an_interrupt_of_the_first_block(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], after: int
    ) -> None:
        def broken(*arguments: Any) -> Any:
            for number, part in enumerate(decided_blocks(*arguments)):
                if number == after:
                    raise error("the disk is gone")
                yield part

        monkeypatch.setattr("brtf.video.stream.decided_blocks", broken)
        with pytest.raises(error):
            find_objects(tmp_path / "out", Footage(source), "a", plan=self.PLAN)
        assert os.listdir(tmp_path) == []

    def test_an_interrupt_waits_for_what_is_being_written(self) -> None:
        done = []
        with pytest.raises(KeyboardInterrupt), signals_later():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("the rest")
        assert done == ["the rest"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
