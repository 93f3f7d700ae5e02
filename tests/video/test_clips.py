"""Clips: what goes into a file comes out again, what is asked for is what is read, and what is no clip is refused."""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from brtf.video import Clip, read_clip, write_clip
from brtf.video.clips import LUMA
from brtf.video.frames import DEFAULT_RATE, decode_frames

# Smooth pictures: what H.264 loses of them, mostly in the chroma, are 2 levels on average and 15 at most. Frames out of
# place by one would be 6 levels off on average, colours in another order 20.
HEIGHT, WIDTH, FRAMES = 32, 48, 20
CODEC_LOSS = 4.0


def smooth_frames(height: int = HEIGHT, width: int = WIDTH, frames: int = FRAMES) -> np.ndarray:
    """(frames, height, width, 3): waves of colour that move."""
    time, row, column = np.meshgrid(np.arange(frames), np.arange(height), np.arange(width), indexing="ij")
    wave = [120 + 80 * np.sin(column / 9 + time / 5 + phase) * np.cos(row / 11) for phase in (0.0, 0.5, 1.0)]
    return np.stack(wave, axis=-1).astype(np.uint8)


def as_frames(clip: Clip) -> np.ndarray:
    """(frames, height, width, channels)."""
    return np.moveaxis(clip.values.reshape(clip.height, clip.width, clip.n_channels, clip.n_frames), 3, 0)


@pytest.fixture(scope="module")
def mp4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "smooth.mp4"
    write_clip(path, smooth_frames(), 30)
    return path


def write_other(path: Path, container: str, codec: str, **options: str) -> None:
    """The same frames in another container."""
    with av.open(str(path), "w", container, container_options=options) as out:
        stream = out.add_stream(codec, rate=25)
        stream.height, stream.width = HEIGHT, WIDTH
        stream.bit_rate = 4_000_000
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for image in smooth_frames():
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode(None))


# ---- round trips -------------------------------------------------------------------------------------------


def test_a_clip_comes_back_within_codec_loss(mp4: Path) -> None:
    clip = read_clip(mp4)
    assert (clip.height, clip.width, clip.n_frames, clip.n_channels) == (HEIGHT, WIDTH, FRAMES, 3)
    assert (clip.rate, clip.announced) == (30, FRAMES)
    assert clip.values.dtype == np.float32
    assert clip.values.flags.c_contiguous
    assert np.abs(as_frames(clip) - smooth_frames()).mean() < CODEC_LOSS


def test_pixels_are_counted_along_the_rows_of_a_frame() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 3), dtype=np.uint8)
    clip = read_clip(frames)
    np.testing.assert_array_equal(clip.image(clip.values[:, :, 2]), frames[2])
    np.testing.assert_array_equal(clip.values[1 * 5 + 4, :, 3], frames[3, 1, 4])
    grey = read_clip(frames[..., 0])
    assert grey.tensor.shape == (15, 4)
    assert np.shares_memory(grey.tensor, grey.values)
    np.testing.assert_array_equal(grey.image(grey.tensor[:, 1]), frames[1, :, :, 0])


@pytest.mark.parametrize(("height", "width"), [(31, 45), (31, 48), (32, 45), (1, 1)])
def test_odd_sizes_are_padded_by_their_last_line(tmp_path: Path, height: int, width: int) -> None:
    frames = smooth_frames(height, width)
    write_clip(tmp_path / "odd.mp4", frames)
    clip = read_clip(tmp_path / "odd.mp4")
    assert (clip.height, clip.width) == (height + height % 2, width + width % 2)
    padded = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    assert np.abs(as_frames(clip) - padded).mean() < CODEC_LOSS


def test_a_browser_can_play_what_is_written(mp4: Path, tmp_path: Path) -> None:
    with av.open(str(mp4)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
    content = mp4.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")  # the index in front
    write_clip(tmp_path / "ntsc.mp4", smooth_frames(frames=2), 30000 / 1001)
    assert read_clip(tmp_path / "ntsc.mp4").rate == Fraction(30000, 1001)


def test_levels_are_rounded_and_clipped_not_wrapped(tmp_path: Path) -> None:
    write_clip(tmp_path / "grey.mp4", [np.full((16, 16), level) for level in (-50.0, 300.0, 99.6)])
    found = read_clip(tmp_path / "grey.mp4").values.mean(axis=(0, 1))
    np.testing.assert_allclose(found, [0, 255, 100], atol=2)  # a level of video luma is 255/219 levels


@pytest.mark.parametrize(
    ("name", "container", "codec"),
    [
        ("a.mkv", "matroska", "libx264"),
        ("a.webm", "webm", "libvpx-vp9"),
        ("a.avi", "avi", "mjpeg"),
        ("a.ts", "mpegts", "libx264"),
        ("no-suffix", "avi", "mpeg4"),
    ],
)
def test_other_containers_are_known_by_their_content(tmp_path: Path, name: str, container: str, codec: str) -> None:
    write_other(tmp_path / name, container, codec)
    clip = read_clip(tmp_path / name)
    assert (clip.n_frames, clip.announced, clip.rate) == (FRAMES, FRAMES, 25)
    assert np.abs(as_frames(clip) - smooth_frames()).mean() < CODEC_LOSS


def test_writing_fails_without_a_trace(tmp_path: Path) -> None:
    write_clip(tmp_path / "clip.mp4", smooth_frames())
    before = (tmp_path / "clip.mp4").read_bytes()

    def broken() -> Iterator[np.ndarray]:
        yield from smooth_frames()[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_clip(tmp_path / "clip.mp4", broken())
    with pytest.raises(ValueError, match="no frame to write"):
        write_clip(tmp_path / "clip.mp4", [])
    assert os.listdir(tmp_path) == ["clip.mp4"]
    assert (tmp_path / "clip.mp4").read_bytes() == before


# ---- what is asked for -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [slice(3, 9), slice(None, 4), slice(15, None), slice(2, 18, 5), slice(0, 1000)])
def test_frames_are_those_chosen(mp4: Path, chosen: slice) -> None:
    clip = read_clip(mp4, frames=chosen)
    np.testing.assert_array_equal(clip.values, read_clip(mp4).values[:, :, chosen])
    assert clip.rate == Fraction(30, chosen.step or 1)
    array = read_clip(smooth_frames(), frames=chosen)
    np.testing.assert_array_equal(as_frames(array), smooth_frames()[chosen])


@pytest.mark.parametrize("chosen", [slice(-3, None), slice(5, 5), slice(5, 2), slice(0, 9, 0), slice(0.5, 3)])
def test_frames_must_go_upwards(chosen: slice) -> None:
    with pytest.raises(ValueError, match="frames must go upwards"):
        read_clip(smooth_frames(), frames=chosen)


def test_frames_beyond_the_end_are_an_error(mp4: Path) -> None:
    with pytest.raises(ValueError, match="none of its 20 frames is among those chosen, 20:"):
        read_clip(mp4, frames=slice(20, None))


def test_gray_mixes_the_colours() -> None:
    frames = smooth_frames()
    clip = read_clip(frames, gray=True)
    assert clip.n_channels == 1
    np.testing.assert_allclose(as_frames(clip)[..., 0], frames @ LUMA, rtol=1e-6)  # float32
    np.testing.assert_array_equal(read_clip(frames[..., 1], gray=True).values, read_clip(frames[..., 1]).values)


def test_scale_averages_over_areas() -> None:
    frames = smooth_frames().astype(float)
    half = as_frames(read_clip(frames, scale=0.5))
    blocks = frames.reshape(FRAMES, HEIGHT // 2, 2, WIDTH // 2, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(half, blocks, rtol=1e-6)  # float32
    odd = as_frames(read_clip(frames, scale=0.3))
    assert odd.shape[1:3] == (10, 14)
    # every old pixel is shared out wholly, so the mean stays
    np.testing.assert_allclose(odd.mean(axis=(1, 2)), frames.mean(axis=(1, 2)), rtol=1e-5)
    assert read_clip(frames, scale=0.001).values.shape == (1, 3, FRAMES)


def test_a_missing_pixel_is_missing_only_where_it_has_a_share() -> None:
    frames = smooth_frames(9, 9, 1).astype(float)
    frames[0, 3, 3] = np.nan
    third = as_frames(read_clip(frames, scale=1 / 3))[0, :, :, 0]
    np.testing.assert_array_equal(np.argwhere(np.isnan(third)), [[1, 1]])


def test_drop_hides_pixels_at_random() -> None:
    whole, dropped = read_clip(smooth_frames()), read_clip(smooth_frames(), drop=0.9, seed=3)
    missing = np.isnan(dropped.values)
    np.testing.assert_array_equal(missing, np.repeat(missing[:, :1], 3, axis=1))  # all channels together
    # 30720 pixels: a standard deviation of the share is 0.0017
    assert abs(missing.mean() - 0.9) < 0.01
    assert np.ptp(missing[:, 0].mean(axis=0)) < 0.1  # in every frame alike
    np.testing.assert_array_equal(dropped.values[~missing], whole.values[~missing])
    again = read_clip(smooth_frames(), drop=0.9, seed=3)
    np.testing.assert_array_equal(again.values, dropped.values)
    assert (np.isnan(read_clip(smooth_frames(), drop=0.9, seed=4).values) != missing).any()


@pytest.mark.parametrize(
    "options", [{"scale": 0}, {"scale": 1.5}, {"scale": float("nan")}, {"drop": 1}, {"drop": -0.1}]
)
def test_options_out_of_range_are_named(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))} must be"):
        read_clip(smooth_frames(), **options)


def test_memory_is_the_clip_in_float32() -> None:
    frames = np.zeros((400, 40, 40, 3), dtype=np.uint8)
    tracemalloc.start()
    try:
        clip = read_clip(frames, drop=0.5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.15 * clip.values.nbytes  # 16 of 400 frames wait to be placed, and one or two are worked on


def test_memory_is_linear_in_the_sides_of_a_frame() -> None:
    frames = np.arange(3 * 4000, dtype=np.uint8).reshape(1, 3, 4000)
    tracemalloc.start()
    try:
        clip = read_clip(frames, scale=0.5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert clip.width == 2000
    assert peak < 4000 * 1000  # a matrix from the old pixels of a line to the new ones has eight million numbers


# ---- images and arrays -------------------------------------------------------------------------------------


def test_images_are_taken_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    frames = smooth_frames(frames=12)
    for number, image in enumerate(frames):
        Image.fromarray(image).save(tmp_path / f"frame{number}.png")
    (tmp_path / "notes.txt").write_text("not an image")
    for source in (tmp_path, f"{tmp_path}/frame*.png", str(tmp_path)):
        clip = read_clip(source)
        np.testing.assert_array_equal(as_frames(clip), frames)
        assert (clip.rate, clip.announced) == (DEFAULT_RATE, None)


def test_grey_and_transparent_images(tmp_path: Path) -> None:
    grey, colour = tmp_path / "grey", tmp_path / "colour"
    for folder in (grey, colour):
        folder.mkdir()
    frames = smooth_frames(frames=2)
    for number, image in enumerate(frames):
        Image.fromarray(image[:, :, 0]).save(grey / f"{number}.jpg", quality=95)
        Image.fromarray(image).convert("RGBA").save(colour / f"{number}.png")
    assert read_clip(grey).n_channels == 1
    assert np.abs(as_frames(read_clip(grey))[..., 0] - frames[..., 0]).mean() < CODEC_LOSS
    np.testing.assert_array_equal(as_frames(read_clip(colour)), frames)


def test_images_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    Image.new("RGB", (8, 6)).save(tmp_path / "0.png")
    Image.new("RGB", (6, 8)).save(tmp_path / "1.png")
    with pytest.raises(
        ValueError, match=r"frame 1 of those chosen has shape \(8, 6, 3\), but the first has \(6, 8, 3\)"
    ):
        read_clip(tmp_path)


def test_images_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), dtype=np.uint16)).save(tmp_path / "deep.png")
    (tmp_path / "text.png").write_text("no picture")
    whole = tmp_path / "whole.png"
    Image.fromarray(smooth_frames()[0]).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:500])
    for name, words in (("deep", "8 bits"), ("text", "cannot identify"), ("cut", "truncated")):
        with pytest.raises(ValueError, match=rf"{name}\.png cannot be read: .*{words}"):
            read_clip(f"{tmp_path}/{name}*.png")


def test_an_array_file_is_a_clip(tmp_path: Path) -> None:
    np.save(tmp_path / "clip.npy", smooth_frames())
    np.testing.assert_array_equal(as_frames(read_clip(tmp_path / "clip.npy")), smooth_frames())


@pytest.mark.parametrize(
    ("array", "error", "words"),
    [
        (np.zeros((4, 4)), ValueError, r"must be \(frames, height, width\)"),
        (np.zeros((2, 4, 4, 4, 1)), ValueError, r"got shape \(2, 4, 4, 4, 1\)"),
        (np.zeros((2, 0, 4), dtype=np.uint8), ValueError, "has no pixel"),
        (np.full((2, 4, 4), 0.5), ValueError, "multiply it by 255"),
        (np.full((2, 4, 4), np.float64(1e10)), ValueError, "beyond 1e\\+09"),
        (np.full((2, 4, 4), "a"), TypeError, "real numbers"),
    ],
)
def test_an_array_that_is_no_clip(array: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_clip(array)


def test_levels_of_half_precision_are_read() -> None:
    np.testing.assert_array_equal(read_clip(np.full((2, 4, 4), 90, dtype=np.float16)).values, 90.0)


# ---- what is refused ---------------------------------------------------------------------------------------


def test_a_file_that_is_cut_short_gives_what_is_left_and_says_so(mp4: Path, tmp_path: Path) -> None:
    content = mp4.read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(content[: int(0.9 * len(content))])
    with pytest.warns(UserWarning, match=r"cut\.mp4: (\d+) frames could be read of 20 announced"):
        clip = read_clip(cut)
    assert 0 < clip.n_frames < FRAMES
    assert clip.announced == FRAMES
    # frames are stored in another order than shown, so one in the middle may lack: what there is, is of the clip
    whole = read_clip(mp4).values
    for frame in range(clip.n_frames):
        distance = np.abs(whole - clip.values[:, :, frame, None]).mean(axis=(0, 1))
        assert distance.min() < CODEC_LOSS
    cut_again = read_clip(cut, frames=slice(0, 2))  # as many as asked for: no complaint
    np.testing.assert_array_equal(cut_again.values, clip.values[:, :, :2])


def test_what_the_decoder_holds_back_is_not_lost_when_a_file_cannot_be_read_on(mp4: Path) -> None:
    class BreaksOff:
        """A container whose packets end in an error instead of an end."""

        def demux(self, stream: Any) -> Iterator[Any]:
            yield from (packet for packet in container.demux(stream) if packet.size)
            raise av.error.InvalidDataError(1, "broken")

    with av.open(str(mp4)) as container:
        assert sum(1 for _ in decode_frames(BreaksOff(), container.streams.video[0])) == FRAMES


def test_a_file_without_its_index_is_refused(tmp_path: Path) -> None:
    write_other(tmp_path / "late.mp4", "mp4", "libx264")
    content = (tmp_path / "late.mp4").read_bytes()
    (tmp_path / "late.mp4").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"late\.mp4 cannot be read: .*cut short or damaged"):
        read_clip(tmp_path / "late.mp4")


@pytest.mark.parametrize("name", ["list.m3u8", "clip.mp4"])
@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{target}'\n",
        '<?xml version="1.0"?><MPD><Period><BaseURL>{target}</BaseURL></Period></MPD>',
        "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
    ],
    ids=["m3u8", "concat", "dash", "sdp"],
)
def test_playlists_are_refused_before_they_are_opened(
    mp4: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr(av, "open", lambda *_, **__: pytest.fail("it was opened"))
    (tmp_path / name).write_text(text.format(target=mp4))
    with pytest.raises(ValueError, match="is text: a playlist or a script"):
        read_clip(tmp_path / name)


def test_what_is_no_video_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.mp4").touch()
    Path("noise.mp4").write_bytes(np.random.default_rng(0).bytes(5000))
    Path("sound.avi").write_bytes(b"RIFF\x24\x00\x00\x00WAVEfmt ")
    Path("stub.mkv").write_bytes(b"\x1aE\xdf\xa3" + bytes(100))
    Path("folder").mkdir()
    for name, words in (
        ("empty.mp4", "is empty"),
        ("noise.mp4", "not a video of a known kind"),
        ("sound.avi", "not a video of a known kind"),
        ("stub.mkv", "cannot be read"),
        ("folder", "has no image"),
        ("none*.png", "has no image"),
    ):
        with pytest.raises(ValueError, match=f"^{name.replace('*', '.')} *.*{words}"):
            read_clip(name)
    with pytest.raises(FileNotFoundError, match=r"absent\.mp4 does not exist"):
        read_clip("absent.mp4")
    with pytest.raises(FileNotFoundError, match=r"http://127\.0\.0\.1/a\.mp4 does not exist"):
        read_clip("http://127.0.0.1/a.mp4")


def test_a_missing_library_is_named(mp4: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (2, 2)).save(tmp_path / "0.png")
    for module in ("av", "PIL.Image"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=rf'^{module} is needed for clips: pip install "brtf\[video\]"'):
            read_clip(mp4 if module == "av" else tmp_path)


def png_header(width, height):
    """A PNG file of some 60 bytes that claims so many pixels."""
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(b"")))
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("size", [9_000, 12_000, 60_000, 2**31 - 1])
def test_a_small_picture_that_claims_many_pixels_is_refused_in_one_sentence(tmp_path, size):
    (tmp_path / "frame.png").write_bytes(png_header(size, size))
    with pytest.raises(ValueError, match=r"frame\.png cannot be read: it claims more than 67,108,864 pixels a frame"):
        read_clip(tmp_path)


def test_a_small_clip_that_claims_many_pixels_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "clip.gif").write_bytes(b"GIF89a" + 2 * struct.pack("<H", 12_000) + bytes(3) + b";")
    with pytest.raises(ValueError, match=r"clip\.gif cannot be read: it claims more than 67,108,864 pixels a frame"):
        read_clip(tmp_path / "clip.gif")


def test_a_clip_says_what_it_is_in_one_line() -> None:
    clip = Clip(np.zeros((6, 3, 4), np.float32), 2, 3)
    assert repr(clip) == "Clip(4 frames of 3 × 2 pixels, channels=3, rate=25)"
