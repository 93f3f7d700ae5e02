"""Background and foreground of a clip: ``brtf.foreground(clip)`` decides everything from the clip.

The module can be called as the function :func:`brtf.video.stream.foreground`. ``boxes`` makes a table of
the objects of a mask; the other functions turn a fitted model of the low-rank background into images and masks.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from brtf.video.boxes import boxes
from brtf.video.decision import Foreground
from brtf.video.foreground import background_images, foreground_images, foreground_probability, smooth_mask
from brtf.video.stream import ForegroundStream, StreamPlan, foreground, stream

__all__ = [
    "Foreground",
    "ForegroundStream",
    "StreamPlan",
    "background_images",
    "boxes",
    "foreground",
    "foreground_images",
    "foreground_probability",
    "smooth_mask",
    "stream",
]


class _Callable(ModuleType):
    """A module that is also the function of its name."""

    def __call__(self, source: Any, **reading: Any) -> Foreground:
        return foreground(source, **reading)


_Callable.__call__.__doc__ = foreground.__doc__
sys.modules[__name__].__class__ = _Callable
