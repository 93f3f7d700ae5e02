"""Clips in blocks: the same frames whatever the blocks, objects nearly as in the whole clip, memory fixed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

import brtf
from brtf.foreground import Foreground, ForegroundStream, StreamPlan, stream
from brtf.metrics import f_measure
from brtf.video import read_clip
from brtf.video.clips import Footage
from brtf.video.stream import bytes_of_frame, fits, foreground_of, look_over

HEIGHT, WIDTH = 48, 64
Clip = tuple[np.ndarray, np.ndarray, np.ndarray]


def clip(kind: str, bands: int = 3, seed: int = 0, frames: int = 120) -> Clip:
    """Frames (frames, height, width, bands), the mask of objects and their edges, both (height, width, frames)."""
    data = brtf.datasets.toy_video(kind, height=HEIGHT, width=WIDTH, frames=frames, bands=bands, seed=seed)
    images = np.moveaxis(data.observed.reshape(HEIGHT, WIDTH, bands, frames), 3, 0).astype(np.uint8)
    return images, data.foreground_mask.reshape(HEIGHT, WIDTH, -1), data.edge.reshape(HEIGHT, WIDTH, -1)


def mask_of(blocks: Iterator[Foreground]) -> np.ndarray:
    """The masks of blocks, which follow each other without a gap, as one."""
    masks, first = [], 0
    for found in blocks:
        assert found.first == first
        assert found.probability.shape == found.mask.shape
        masks.append(found.mask)
        first += found.mask.shape[2]
    return np.concatenate(masks, axis=2)


class TestReading:
    @pytest.mark.parametrize("length", [1, 7, 16, 20, 33, 100])
    @pytest.mark.parametrize(
        "options", [{}, {"frames": slice(3, 30, 2)}, {"scale": 0.5, "gray": True, "drop": 0.3, "seed": 2}]
    )
    def test_blocks_are_parts_of_the_clip(self, length: int, options: dict[str, object]) -> None:
        images = np.random.default_rng(0).integers(0, 256, (33, 10, 12, 3), dtype=np.uint8)
        whole = read_clip(images, **options)
        blocks = list(Footage(images, **options).blocks(length))
        assert all(block.n_frames == length for block in blocks[:-1])
        assert all(block.rate == whole.rate and block.values.flags.c_contiguous for block in blocks)
        np.testing.assert_array_equal(np.concatenate([block.values for block in blocks], axis=2), whole.values)

    def test_an_iterator_is_a_clip_too(self) -> None:
        images = np.random.default_rng(0).integers(0, 256, (9, 10, 12, 3), dtype=np.uint8)
        np.testing.assert_array_equal(read_clip(iter(images)).values, read_clip(images).values)
        np.testing.assert_array_equal(
            read_clip(iter(images[..., :1]), frames=slice(2, 8, 3)).values,
            read_clip(images[..., 0], frames=slice(2, 8, 3)).values,
        )
        np.testing.assert_array_equal(brtf.foreground(iter(images)).mask, brtf.foreground(images).mask)

    @pytest.mark.parametrize(
        ("frames", "said"),
        [
            ([np.full((4, 4), 7), np.full((4, 5), 7)], "frame 1 of those chosen has shape"),
            ([np.full(4, 7)], "got shape \\(4,\\) for frame 0"),
            ([np.full((4, 4), 0.5)], "levels of at most 1"),
            ([np.full((4, 4), True)], "levels of at most 1"),
            ([np.full((4, 4), "a")], "must hold real numbers"),
            ([np.full((4, 0), 7)], "has no pixel"),
            ([], "none of its 0 frames"),
        ],
    )
    def test_what_is_no_frame_is_refused(self, frames: list[np.ndarray], said: str) -> None:
        with pytest.raises((ValueError, TypeError), match=said):
            read_clip(iter(frames))


@pytest.mark.parametrize("kind", ["street", "stays", "goes"])
def test_blocks_of_a_file_are_as_good_as_the_whole(kind: str) -> None:
    images, true, edge = clip(kind, 3, seed=1)
    found = mask_of(stream(images, plan=StreamPlan(block=40, memory=60)))
    assert f_measure(found, true, ignore=edge) >= f_measure(brtf.foreground(images).mask, true, ignore=edge) - 0.01


def test_somebody_who_will_leave_is_an_object_from_the_first_block_on() -> None:
    images, true, edge = clip("goes", 3, seed=1)
    plan = StreamPlan(block=30, memory=20)
    first = next(stream(images, plan=plan))
    assert true[:, :, :30].any(axis=(0, 1)).all()
    assert f_measure(first.mask, true[:, :, :30], ignore=edge[:, :, :30]) > 0.95
    # whereas somebody who has always been there is the scene to a camera that cannot know
    assert f_measure(next(stream(iter(images), plan=plan)).mask, true[:, :, :30]) < 0.5


class TestCamera:
    """Blocks that come, of which only the past is known."""

    def test_blocks_are_decided_with_the_past(self) -> None:
        images, true, edge = clip("stays", 3, seed=0)
        seen = ForegroundStream(memory=40)
        masks = [seen.partial_fit(block).mask for block in np.split(images, [40, 80])]
        assert seen.n_frames_seen_ == 120
        # in the last block somebody stands there in every frame: only the past knows the empty scene
        assert true[:, :, 80:].any(axis=(0, 1)).all()
        assert f_measure(masks[2], true[:, :, 80:], ignore=edge[:, :, 80:]) > 0.95

    def test_a_block_is_decided_as_soon_as_it_is_complete(self) -> None:
        images = np.random.default_rng(0).integers(90, 110, (50, 32, 32)).astype(np.uint8)
        n_asked = 0

        def camera() -> Iterator[np.ndarray]:
            nonlocal n_asked
            for image in images:
                n_asked += 1
                yield image

        asked = []
        for found in stream(camera(), plan=StreamPlan(block=20, memory=8)):
            asked.append((found.first, found.mask.shape[2], n_asked))
        assert asked == [(0, 20, 20), (20, 20, 40), (40, 10, 50)]

    def test_the_past_is_bounded_and_begins_with_the_first_frame(self) -> None:
        seen = ForegroundStream(memory=8)
        frames = np.random.default_rng(0).integers(90, 110, (50, 32, 32)).astype(np.uint8)
        for block in np.split(frames, 5):
            seen.partial_fit(block)
            assert len(seen._past.frames) <= 8
        assert seen._past.numbers == list(range(0, 50, 8))
        for number, frame in zip(seen._past.numbers, seen._past.frames, strict=True):
            np.testing.assert_array_equal(frame[:, 0], frames[number].ravel())

    @pytest.mark.parametrize("bands", [1, 3])
    def test_a_block_in_which_the_camera_saw_nothing_has_no_objects(self, bands: int) -> None:
        images = clip("street", bands, frames=40)[0].astype(np.float32)
        images[20:30] = np.nan
        images[35:, :, :, -1] = np.nan  # a pixel that lacks a band is missing
        seen = ForegroundStream()
        for block, dark in zip(np.split(images, [20, 30, 35]), [False, True, False, True], strict=True):
            found = seen.partial_fit(block)
            assert np.isnan(found.probability).all() == dark
            assert found.mask.any() != dark

    def test_blocks_of_another_size_are_refused(self) -> None:
        seen = ForegroundStream()
        seen.partial_fit(np.full((4, 32, 32), 9, dtype=np.uint8))
        with pytest.raises(ValueError, match="All blocks must be of one clip"):
            seen.partial_fit(np.full((4, 32, 33), 9, dtype=np.uint8))


def test_memory_does_not_grow_with_the_clip() -> None:
    images = np.random.default_rng(0).integers(90, 110, (20, 32, 32)).astype(np.uint8)

    def peak(n_blocks: int) -> int:
        tracemalloc.start()
        try:
            for _ in stream(cycle(images, n_blocks), plan=StreamPlan(block=20, memory=10)):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def cycle(images: np.ndarray, n: int) -> Iterator[np.ndarray]:
        for _ in range(n):
            yield from images

    peak(2)  # what is imported and compiled at first
    short, long = peak(2), peak(6)
    assert long - short < 0.5 * (4 * 20) * 32 * 32 * 4  # the frames alone would be twice that


def test_a_clip_that_would_take_too_much_is_decided_in_blocks() -> None:
    images, _, _ = clip("street", 1, frames=50)
    plan = StreamPlan(block=20, memory=12, whole_bytes=0)
    found = foreground_of(Footage(images), 50, plan)
    np.testing.assert_array_equal(found.mask, mask_of(stream(images, plan=plan)))
    assert found.probability.shape == found.mask.shape
    said = found.sentences()
    assert "decided in 3 blocks, each together with 12 frames" in said[0]
    assert said[-1] == f"{100 * found.mask.mean():.3g} % of all pixels belong to objects."
    assert "blocks" not in foreground_of(Footage(images), 50, StreamPlan()).sentences()[0]


class TestPlan:
    def test_large_frames_come_in_shorter_blocks(self) -> None:
        plan = StreamPlan(block_bytes=100 * bytes_of_frame(5000, 3))
        assert (plan.of_frames(5000, 3).block, plan.of_frames(5000, 3).memory) == (50, 50)
        assert plan.of_frames(50, 3) == plan
        assert plan.of_frames(10**9, 3).block == 4

    def test_a_clip_is_streamed_if_it_would_take_more_than_is_allowed(self) -> None:
        footage = Footage(np.full((50, 8, 10), 9, dtype=np.uint8))
        assert fits(footage, 50, StreamPlan(whole_bytes=50 * bytes_of_frame(80, 1)))
        assert not fits(footage, 51, StreamPlan(whole_bytes=50 * bytes_of_frame(80, 1)))

    def test_frames_of_other_times_are_spread_over_the_whole_clip(self) -> None:
        images = np.random.default_rng(0).integers(90, 110, (41, 16, 16)).astype(np.uint8)
        overview = look_over(Footage(images), 41, StreamPlan(memory=5))
        assert list(overview.numbers) == [0, 10, 20, 30, 40]
        np.testing.assert_array_equal(overview.clip.values[:, 0], images[::10].reshape(5, -1).T)

    @pytest.mark.parametrize("part", ["block", "memory", "local"])
    def test_a_plan_needs_frames(self, part: str) -> None:
        with pytest.raises(ValueError, match=f"^{part} must be at least"):
            StreamPlan(**{part: 0})
