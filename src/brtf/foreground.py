"""Background and foreground of a clip from a fitted model, and masks of whole objects instead of single pixels."""

from brtf.video.foreground import background_images, foreground_images, foreground_probability, smooth_mask

__all__ = ["background_images", "foreground_images", "foreground_probability", "smooth_mask"]
