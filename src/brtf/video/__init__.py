"""Clips from fixed cameras: frames in, foreground and background out."""

from brtf.video.clips import Clip, read_clip, write_clip

__all__ = ["Clip", "read_clip", "write_clip"]
