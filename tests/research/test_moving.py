"""Who finds what moves: every method on one clip with known masks, and the command that compares them."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import brtf
from brtf import cli
from brtf.research.moving import MOVING, compare_moving, find_moving
from brtf.video import read_clip

HEIGHT, WIDTH, FRAMES = 48, 64, 80


@pytest.fixture(scope="module")
def street() -> tuple[np.ndarray, np.ndarray]:
    """Frames (frames, height, width, bands) and labels (height, width, frames)."""
    data = brtf.datasets.toy_video("street", height=HEIGHT, width=WIDTH, frames=FRAMES, seed=0)
    frames = np.moveaxis(data.observed.reshape(HEIGHT, WIDTH, 3, FRAMES), 3, 0)
    labels = np.where(data.foreground_mask, 255, 0).reshape(HEIGHT, WIDTH, FRAMES)
    labels[data.edge.reshape(labels.shape)] = 170
    return frames, labels


def test_every_method_finds_some_of_what_moves(street: tuple[np.ndarray, np.ndarray]) -> None:
    pytest.importorskip("cv2")
    frames, labels = street
    rows = {row["method"]: row for row in compare_moving(read_clip(frames), labels)}
    assert rows.keys() == MOVING.keys()
    moving = np.mean(labels == 255)
    for row in rows.values():
        assert row["error"] is None
        # better than calling everything moving
        assert row["f"] > 2 * moving / (1 + moving)
        if row["f"] > 0:
            harmonic = 2 / (1 / row["precision"] + 1 / row["recall"])
            assert row["f"] == pytest.approx(harmonic)


def test_labels_of_unknown_pixels_are_not_judged(street: tuple[np.ndarray, np.ndarray]) -> None:
    frames, _ = street
    clip = read_clip(frames)
    found = find_moving("mad", clip)
    (row,) = compare_moving(clip, np.where(found, 255, 0), ["mad"])
    assert row["f"] == 1
    wrong = np.where(found, 85, 0)
    wrong[0, 0, 0] = 255
    (row,) = compare_moving(clip, np.where(found & (wrong != 255), 170, wrong), ["mad"])
    assert row["precision"] == found[0, 0, 0]


def test_masks_of_another_size_and_unknown_methods_are_refused(street: tuple[np.ndarray, np.ndarray]) -> None:
    frames, labels = street
    with pytest.raises(ValueError, match="the masks have height, width and frames"):
        next(compare_moving(read_clip(frames), labels[:, :, :-1]))
    with pytest.raises(ValueError, match="methods must be among brtf"):
        next(compare_moving(read_clip(frames), labels, ["sift"]))


def test_the_command_prints_the_table(street: tuple[np.ndarray, np.ndarray], tmp_path) -> None:
    frames, labels = street
    np.save(tmp_path / "clip.npy", frames)
    np.save(tmp_path / "truth.npy", np.moveaxis(labels, 2, 0))
    command = ["compare", str(tmp_path / "clip.npy"), "--truth", str(tmp_path / "truth.npy"), "--methods", "brtf,mad"]
    done = CliRunner().invoke(cli.main, [*command, "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [row["method"] for row in rows] == ["brtf", "mad"]
    assert rows[0]["f"] >= rows[1]["f"] > 0.7
    refused = CliRunner().invoke(cli.main, [*command[:-1], "sift"])
    assert refused.exit_code != 0
    assert "must be among" in refused.output
