"""Boxes around the objects of a mask: they hold them, tightly, and what is written agrees with what is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from brtf.foreground import boxes
from brtf.video import read_clip
from brtf.video.boxes import LINE, box_edges, boxes_document, boxes_images


def components(frame: np.ndarray) -> list[set[tuple[int, int]]]:
    """Connected regions by plain search, in which corners touch."""
    left = {(int(row), int(column)) for row, column in zip(*np.nonzero(frame), strict=True)}
    found = []
    while left:
        region, edge = set(), {left.pop()}
        while edge:
            row, column = edge.pop()
            region.add((row, column))
            near = {(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)} & left
            left -= near
            edge |= near
        found.append(region)
    return found


@pytest.mark.parametrize("density", [0.02, 0.2, 0.5])
def test_boxes_are_those_of_a_plain_search(density: float) -> None:
    mask = np.random.default_rng(0).random((13, 17, 6)) < density
    found = boxes(mask)
    expected = []
    for frame in range(6):
        for region in components(mask[:, :, frame]):
            rows, columns = zip(*region, strict=True)
            x, y = min(columns), min(rows)
            expected.append((frame, x, y, max(columns) - x + 1, max(rows) - y + 1, len(region)))
    assert sorted(zip(*(column.tolist() for column in found.values()), strict=True)) == sorted(expected)
    assert found["area"].sum() == mask.sum()
    assert (np.diff(found["frame"]) >= 0).all()


def test_turning_a_frame_over_swaps_the_sides() -> None:
    mask = np.random.default_rng(1).random((9, 14, 3)) < 0.2
    one, other = boxes(mask), boxes(mask.transpose(1, 0, 2))
    names = ("frame", "x", "y", "width", "height", "area")
    swapped = ("frame", "y", "x", "height", "width", "area")
    assert sorted(zip(*(one[name].tolist() for name in names), strict=True)) == sorted(
        zip(*(other[name].tolist() for name in swapped), strict=True)
    )


def test_an_empty_mask_has_no_box() -> None:
    found = boxes(np.zeros((4, 5, 3), dtype=bool))
    assert all(column.shape == (0,) and column.dtype == np.int64 for column in found.values())
    document = boxes_document(found, range(3), 4, 5)
    assert (len(document["images"]), document["annotations"]) == (3, [])


def test_the_document_refers_to_its_images() -> None:
    mask = np.random.default_rng(2).random((8, 9, 4)) < 0.1
    frames = [3, 5, 7, 9]
    found = boxes(mask, frames)
    document = boxes_document(found, frames, 8, 9)
    assert [image["id"] for image in document["images"]] == frames
    assert document["images"][0] == {"id": 3, "file_name": "mask/000003.png", "height": 8, "width": 9}
    assert [one["id"] for one in document["annotations"]] == list(range(1, found["frame"].size + 1))
    assert [one["image_id"] for one in document["annotations"]] == found["frame"].tolist()
    assert {one["category_id"] for one in document["annotations"]} == {document["categories"][0]["id"]}
    for one in document["annotations"]:
        x, y, width, height = one["bbox"]
        inside = mask[y : y + height, x : x + width, frames.index(one["image_id"])]
        assert inside.any(axis=0)[[0, -1]].all() and inside.any(axis=1)[[0, -1]].all()
        assert 0 < one["area"] <= inside.sum()


@pytest.mark.parametrize("bands", [(), (3,), (7,)])
def test_boxes_are_drawn_on_their_outermost_pixels_only(bands: tuple[int, ...]) -> None:
    levels = np.random.default_rng(3).uniform(0, 255, (2, 10, 12, *bands)).astype(np.float32)
    levels[0, 0, 0] = np.nan
    before = levels.copy()
    mask = np.zeros((10, 12, 2), dtype=bool)
    mask[2:7, 3:9, 1] = True
    clip = read_clip(levels)
    found = boxes(mask)
    first, second = boxes_images(clip, found, range(2))
    outline = mask[:, :, 1].copy()
    outline[3:6, 4:8] = False
    assert box_edges(found, 1) == [(2, 6, 3, 8)]
    np.testing.assert_array_equal(second[outline], np.broadcast_to(LINE, (outline.sum(), 3)))
    plain = clip.image(clip.values[:, :, 1])
    np.testing.assert_array_equal(second[~outline], (plain if bands else np.stack([plain] * 3, axis=2))[~outline])
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(levels, before)


@pytest.mark.parametrize(
    ("mask", "frames", "words"),
    [
        (np.zeros((4, 5), dtype=bool), None, "got bool of shape"),
        (np.zeros((4, 5, 2)), None, "got float64"),
        (np.zeros((4, 5, 2), dtype=bool), [1], "each of the 2 frames, got 1"),
    ],
)
def test_what_is_no_mask_is_refused(mask: np.ndarray, frames: list[int] | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        boxes(mask, frames)
