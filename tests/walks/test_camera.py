"""Somebody with a clip of a fixed camera: the background, what moves, masks and a page, from files to files."""

import json

import numpy as np
import pytest

import brtf
from brtf.foreground import foreground_probability
from brtf.video import read_clip, write_clip
from people import brtf_command, page_text

HEIGHT, WIDTH, FRAMES = 16, 24, 16


@pytest.fixture(scope="module")
def scene():
    """A wall in light that changes, a bright block that crosses it: frames, wall of every frame, mask of the block."""
    rng = np.random.default_rng(0)
    wall = 90 + 30 * np.sin(np.arange(WIDTH) / 3) + 20 * np.cos(np.arange(HEIGHT) / 4)[:, None]
    light = 1 + 0.1 * np.sin(np.arange(FRAMES) / 3)
    mask = np.zeros((FRAMES, HEIGHT, WIDTH), dtype=bool)
    for time in range(FRAMES):
        mask[time, 5:11, time : time + 6] = True
    walls = light[:, None, None] * wall
    return np.where(mask, 230.0, walls) + rng.normal(0, 2, mask.shape), walls, mask


def test_an_array_in_python(scene):
    frames, walls, mask = scene
    clip = read_clip(frames)
    model = brtf.BRTF(random_state=0).fit(clip.tensor)
    probability = foreground_probability(model, clip)
    assert brtf.metrics.f_measure(probability > 0.5, np.moveaxis(mask, 0, 2)) > 0.95
    background = np.moveaxis(model.low_rank().reshape(HEIGHT, WIDTH, FRAMES), 2, 0)
    assert np.abs(background - walls)[~mask].mean() < 2


def test_a_file_on_the_command_line(tmp_path):
    street = brtf.datasets.toy_video("street", height=48, width=64, frames=50, seed=0)
    write_clip(tmp_path / "clip.mp4", np.moveaxis(street.observed.reshape(48, 64, 3, 50), 3, 0))
    numbers = json.loads(brtf_command("video", tmp_path / "clip.mp4", "--out", tmp_path / "out", "--json"))
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"background.png", "foreground.mp4", "mask.mp4", "mask", "boxes.mp4", "boxes.csv", "report.html"} <= written
    assert numbers["objects"] > 0
    clip = read_clip(tmp_path / "out" / "mask.mp4", gray=True)
    found = clip.values.reshape(clip.height, clip.width, 50) > 127
    assert brtf.metrics.f_measure(found, street.foreground_mask.reshape(48, 64, 50)) > 0.85  # the codec blurs the edges
    assert "frame" in page_text(tmp_path / "out" / "report.html").lower()
