"""Somebody with a clip of a fixed camera: the background, what moves, masks and a page, from files to files."""

import json

import numpy as np
import pytest

import brtf
from brtf.foreground import foreground_probability
from brtf.video import read_clip, write_clip
from pages import looked_at
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


@pytest.fixture(scope="module")
def street():
    return brtf.datasets.toy_video("street", height=48, width=64, frames=50, seed=0)


@pytest.fixture(scope="module")
def worked_on(street, tmp_path_factory):
    """A clip, what `brtf video` wrote of it, and what it said."""
    place = tmp_path_factory.mktemp("clip")
    write_clip(place / "clip.mp4", np.moveaxis(street.observed.reshape(48, 64, 3, 50), 3, 0))
    return place, json.loads(brtf_command("video", place / "clip.mp4", "--out", place / "out", "--json"))


def test_a_clip_in_python(street, worked_on):
    place, _ = worked_on
    clip = read_clip(place / "clip.mp4")
    found = brtf.foreground(clip)
    assert brtf.metrics.f_measure(found.mask, street.foreground_mask.reshape(48, 64, 50)) > 0.8
    table = brtf.foreground.boxes(found.mask)
    assert len(table) > 0


def test_a_page_in_a_browser(worked_on, visit):
    place, _ = worked_on
    seen = looked_at(visit, place / "out" / "report.html")
    assert "frame" in seen.tab.inner_text("body").lower()
    slider = seen.tab.locator("input[type=range]").first
    seen.tab.emulate_media(media="screen")
    slider.scroll_into_view_if_needed()
    before = seen.tab.screenshot()
    slider.fill("20")
    assert seen.tab.screenshot() != before
    assert seen.complaints == []


def test_files_from_the_command_line(street, worked_on):
    tmp_path, numbers = worked_on
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"background.png", "foreground.mp4", "mask.mp4", "mask", "boxes.mp4", "boxes.csv", "report.html"} <= written
    assert numbers["objects"] > 0
    clip = read_clip(tmp_path / "out" / "mask.mp4", gray=True)
    found = clip.values.reshape(clip.height, clip.width, 50) > 127
    assert brtf.metrics.f_measure(found, street.foreground_mask.reshape(48, 64, 50)) > 0.85  # the codec blurs the edges
    assert "frame" in page_text(tmp_path / "out" / "report.html").lower()
