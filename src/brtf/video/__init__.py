"""Clips from fixed cameras: frames in, foreground and background out."""

from brtf.video.clips import LUMA, Clip, read_clip, write_clip

__all__ = ["LUMA", "Clip", "read_clip", "write_clip"]
