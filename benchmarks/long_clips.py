"""Clips of minutes in blocks: what is found against the whole clip, time, and memory.

Run ``python benchmarks/long_clips.py`` with

- ``--quality``: F-measure on generated clips of every kind, of the whole clip, of its blocks when it is read from a
  file, and of its blocks when it comes from a camera; the clips have 900 frames of 72 × 96 pixels, through which
  somebody passes all the time, in light that changes slowly;
- ``--minutes 1 2 4``: CPU time of a frame and largest memory of ``brtf video`` on clips of 320 × 240 pixels and 25
  frames a second of so many minutes, in colour or with ``--gray``, and F of their masks; other frames with ``--size``,
  and with ``--blocks`` also short clips in blocks;
- ``--whole``: memory that the decision of a whole clip takes for every pixel of a frame.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import brtf
from brtf.api.toy_clips import CLIP_KINDS, frames_of_kind
from brtf.api.toy_video import EDGE
from brtf.foreground import StreamPlan, stream
from brtf.metrics import f_measure

Array = NDArray[Any]
SMALL, LARGE, RATE = (72, 96), (240, 320), 25
FRAMES, ACT = 900, 200
"""Length of the clips of ``--quality``, and in how many frames four objects pass: eight seconds."""


def made(kind: str, size: tuple[int, int], frames: int, bands: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Frames of a generated clip, and what objects cover of them, one by one."""
    rng = np.random.default_rng(seed)
    for recorded, _, cover in frames_of_kind(kind, *size, frames, bands, rng, ACT):
        yield recorded.astype(np.uint8), cover.astype(np.float32)


def quality(kinds: list[str], bands: list[int], seeds: list[int], plan: StreamPlan, frames: int) -> None:
    """Print F of the whole and of blocks for every clip."""
    print("| clip | whole | file | camera | CPU ms a frame, whole | file | camera |\n" + 7 * "| --- " + "|")
    for kind in kinds:
        for n_bands in bands:
            for seed in seeds:
                images, covers = (
                    np.stack(part) for part in zip(*made(kind, SMALL, frames, n_bands, seed), strict=True)
                )
                true, edge = (np.moveaxis(part, 0, 2) for part in (covers > 0.5, (covers > EDGE) & (covers < 1 - EDGE)))
                found, seconds = [], []
                for masks in (
                    lambda images=images: [brtf.foreground(images).mask],
                    lambda images=images: [part.mask for part in stream(images, plan=plan)],
                    lambda images=images: [part.mask for part in stream(iter(images), plan=plan)],
                ):
                    start = time.process_time()
                    mask = np.concatenate(masks(), axis=2)
                    seconds.append(time.process_time() - start)
                    found.append(f_measure(mask, true, ignore=edge))
                cells = [f"{one:.4f}" for one in found] + [f"{1000 * one / frames:.1f}" for one in seconds]
                print(f"| {kind}, {n_bands} bands, seed {seed} | {' | '.join(cells)} |", flush=True)


def whole_memory() -> None:
    """Print the bytes for a pixel of a frame, in grey and in colour, each measured in a process of its own."""
    for bands in (1, 3):
        code = (
            "import resource, numpy, brtf, long_clips\n"
            f"clip = numpy.stack([one for one, _ in long_clips.made('shadow', long_clips.LARGE, 48, {bands}, 0)])\n"
            "brtf.foreground(clip[:12, :40, :40])\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "brtf.foreground(clip)\n"
            "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / (48 * 240 * 320))"
        )
        out = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True, capture_output=True)
        print(f"{bands} bands: {float(out.stdout):.0f} bytes for a pixel of a frame")


BLOCKS = """
import sys
from pathlib import Path
from brtf.cli.output import print_json
from brtf.cli.video import find_objects
from brtf.foreground import StreamPlan
from brtf.video.clips import Footage
clip, out, gray = sys.argv[1:]
print_json(find_objects(Path(out), Footage(clip, gray=gray == "gray"), "clip", plan=StreamPlan(whole_bytes=0))[1])
"""
"""What ``brtf video`` does with a long clip, for clips that are not."""


def minutes(lengths: list[float], gray: bool, kind: str, size: tuple[int, int], blocks: bool) -> None:
    """Print time, memory and F of ``brtf video`` on clips of so many minutes."""
    from PIL import Image

    from brtf.video import write_clip

    for length in lengths:
        frames = round(length * 60 * RATE)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
            covers = np.lib.format.open_memmap(f"{place}/true.npy", "w+", np.uint8, (frames, *size))

            def images(frames: int = frames, covers: Array = covers) -> Iterator[Array]:
                for k, (image, cover) in enumerate(made(kind, size, frames, 1 if gray else 3, 0)):
                    covers[k] = np.where((cover > EDGE) & (cover < 1 - EDGE), 85, 255 * (cover > 0.5))
                    yield image[:, :, 0] if gray else image

            write_clip(f"{place}/clip.mp4", images(), RATE)
            command = [sys.executable, "-m", "brtf", "video", f"{place}/clip.mp4", "--out", f"{place}/out", "--json"]
            command += ["--gray"] if gray else []
            if blocks:
                command = [sys.executable, "-c", BLOCKS, f"{place}/clip.mp4", f"{place}/out", "gray" if gray else ""]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            out = subprocess.run(command, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            both = truly = found = 0
            for k, path in enumerate(sorted(Path(place, "out", "mask").iterdir())):
                mask, judged = np.asarray(Image.open(path)) > 0, covers[k] != 85
                both += int(np.count_nonzero(mask & (covers[k] == 255)))
                found += int(np.count_nonzero(mask & judged))
                truly += int(np.count_nonzero(covers[k] == 255))
            page = Path(place, "out", "report.html").stat().st_size
            print(
                f"{size[1]} x {size[0]} pixels, {length:g} minutes, {'grey' if gray else 'colour'}: "
                f"{json.loads(out.stdout)['blocks']} blocks of {frames} frames, "
                f"{1000 * seconds / frames:.0f} ms of CPU time a frame, at most {after.ru_maxrss / 1024:.0f} MB, page "
                f"{page / 1e6:.1f} MB, F {2 * both / (truly + found):.4f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--minutes", type=float, nargs="+")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--gray", action="store_true")
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), default=LARGE)
    parser.add_argument("--kinds", nargs="+", choices=CLIP_KINDS, default=list(CLIP_KINDS))
    parser.add_argument("--bands", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--plan", type=int, nargs=2, metavar=("BLOCK", "MEMORY"))
    options = parser.parse_args()
    if options.quality:
        plan = StreamPlan(*options.plan) if options.plan else StreamPlan()
        quality(options.kinds, options.bands, options.seeds, plan, options.frames)
    if options.minutes:
        minutes(options.minutes, options.gray, options.kinds[0], tuple(options.size), options.blocks)
    if options.whole:
        whole_memory()


if __name__ == "__main__":
    main()
