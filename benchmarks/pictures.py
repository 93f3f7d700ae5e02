"""Rows of images side by side, drawn into one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray


def draw_rows(rows: Sequence[Sequence[NDArray[Any]]], titles: Sequence[str], path: Path, labels: Sequence[str]) -> None:
    """Draw images in labelled rows with a title over each column; grey levels go from 0 to 255."""
    import matplotlib.pyplot as plt

    height, width = rows[0][0].shape[:2]
    size = (2.2 * len(titles), 2.2 * len(rows) * height / width + 0.3)
    figure, axes = plt.subplots(len(rows), len(titles), figsize=size, layout="constrained", squeeze=False)
    for line, images, label in zip(axes, rows, labels, strict=True):
        for axis, image in zip(line, images, strict=True):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255 if image.dtype != bool else 1)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(label, fontsize=8)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=9)
    figure.savefig(path, dpi=110)
