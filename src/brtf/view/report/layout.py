"""Which modes of a tensor make up a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brtf.data.observations import Observations
from brtf.view.view_data import longest_modes


@dataclass(frozen=True)
class Layout:
    """Which modes make up a picture.

    Attributes
    ----------
    rows, columns : modes downwards and to the right; the same mode where it runs over the pixels of a picture
    colours : mode of three colours, or None
    size : (height, width), the extent of a picture
    photo : whether the values are light levels
    """

    rows: int
    columns: int
    colours: int | None
    size: tuple[int, int]
    photo: bool

    @property
    def pixels(self) -> bool:
        """Whether one mode runs over all pixels of a picture."""
        return self.rows == self.columns

    def sliders(self, order: int) -> list[int]:
        """The modes that are not part of a picture."""
        return [mode for mode in range(order) if mode not in (self.rows, self.columns, self.colours)]


def layout_of(
    observations: Observations, image_modes: Sequence[int] | None, image_size: Sequence[int] | None
) -> Layout:
    """The given modes, or a guess: a mode of length three is colour if the values look like light levels."""
    shape = observations.shape
    if image_modes is None:
        if image_size is not None:
            raise ValueError("image_size needs image_modes, which says which mode runs over the pixels.")
        return _guess(observations)
    modes = [int(mode) for mode in image_modes]
    wanted = (1, 2) if image_size is not None else (2, 3)
    if len(modes) not in wanted or len(set(modes)) != len(modes) or not set(modes) <= set(range(len(shape))):
        parts = "(pixels,) or (pixels, colours)" if image_size is not None else "(rows, columns) or these and colours"
        raise ValueError(
            f"image_modes must be different modes of a tensor of order {len(shape)}: {parts}; got {modes}."
        )
    if image_size is None:
        rows, columns, *colours = modes
        size = (shape[rows], shape[columns])
    else:
        rows, *colours = modes
        columns = rows
        height, width = (int(length) for length in image_size)
        size = (height, width)
        if height < 1 or width < 1 or height * width != shape[rows]:
            raise ValueError(
                f"image_size must multiply to the length {shape[rows]} of mode {rows}, got {height} x {width}."
            )
    if colours and shape[colours[0]] != 3:
        raise ValueError(f"the mode of colours must have length 3, but mode {colours[0]} has {shape[colours[0]]}.")
    return Layout(rows, columns, colours[0] if colours else None, size, photo=True)


def _guess(observations: Observations) -> Layout:
    shape = observations.shape
    rows, columns = longest_modes(shape)
    others = [mode for mode in range(len(shape)) if mode not in (rows, columns)]
    colours = next((mode for mode in others if shape[mode] == 3), None)
    light = not observations.in_chunks and observations.values.min() >= 0 and observations.values.max() <= 255
    photo = colours is not None and bool(light) and min(shape[rows], shape[columns]) >= 16
    return Layout(rows, columns, colours if photo else None, (shape[rows], shape[columns]), photo)
