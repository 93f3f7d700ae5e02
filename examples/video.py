"""
Video: moving objects in front of a fixed camera
================================================

A camera films a scene in flickering light while a car, a walker and a ball pass by, and nearly a third of the pixels
are lost. As a matrix, pixels × frames, the scene has low rank, and whatever passes is an outlier. For video files use
``brtf video clip.mp4``.
"""

import matplotlib.pyplot as plt
import numpy as np

import brtf
from brtf.foreground import foreground_probability, smooth_mask
from brtf.video import LUMA, read_clip

# %%
# The truth
# ---------
# A synthetic clip: a texture and a flickering lamp, so two components. Every pixel has its own noise level, about 3
# grey levels in each colour, and some sensors are stuck.

height, width, n_frames = 40, 64, 40
truth = brtf.datasets.toy_video(height=height, width=width, frames=n_frames, missing=0.3, seed=0)
clip = read_clip(np.moveaxis(truth.observed.reshape(height, width, 3, n_frames), 3, 0), gray=True)
scene = np.einsum("c,pct->pt", LUMA, truth.background)
objects = truth.foreground_mask.reshape(height, width, n_frames)

# %%
# The fit
# -------
# A pixel belongs to an object if its outlier probability is above ½. ``smooth_mask`` finds connected objects instead of
# single pixels, and so also decides at missing pixels; how strongly neighbours agree is learnt. Pixels are stored line
# by line, which is no order to look for.

model = brtf.BRTF(modes=None, smooth_residual=None, random_state=0).fit(clip.tensor)
probability = foreground_probability(model, clip)
mask = smooth_mask(probability)

seen = ~np.isnan(probability)
found = brtf.metrics.f_measure(probability[seen] > 0.5, objects[seen])
found_whole = brtf.metrics.f_measure(mask, objects)
alive = ~truth.dead
hidden = np.isnan(clip.tensor) & alive[:, None]
background = model.low_rank()
ratio = brtf.metrics.psnr(background[alive], scene[alive], peak=255)
low, high = model.predict_interval()
covered = brtf.metrics.coverage(low[hidden], high[hidden], scene[hidden])

print(f"components of the scene: true {np.linalg.matrix_rank(scene)}, found {model.rank_}")
print(f"pixels of objects: true {objects[seen].mean():.1%}, found {model.outlier_rate_:.1%}")
print(f"F-measure of the pixels that were seen: {found:.2f}; of whole objects, at all pixels: {found_whole:.2f}")
print(f"peak signal-to-noise ratio of the scene (sensors that work): {ratio:.1f} dB")
print(f"95 % intervals that hold the scene at missing pixels: {covered:.1%}")

# %%
# The intervals are a little narrow: the model has one noise level, the sensors have many. ``noise="per-slice"`` gives
# each pixel its own, at three times the cost; on forty frames that gains nothing.
#
# The picture
# -----------

shown = [6, 18, 30]
figure, axes = plt.subplots(len(shown), 4, figsize=(11, 5.6), layout="constrained")
titles = ["observed (blue: missing)", "scene found", "outlier probability", "objects: true (grey), found (line)"]
grey, fire = (plt.get_cmap(name).with_extremes(bad="#56B4E9") for name in ("gray", "magma"))
for line, frame in zip(axes, shown, strict=True):
    line[0].imshow(clip.image(clip.tensor[:, frame]), cmap=grey, vmin=50, vmax=215)
    line[1].imshow(clip.image(background[:, frame]), cmap=grey, vmin=50, vmax=215)
    drawn = line[2].imshow(probability[:, :, frame], cmap=fire, vmin=0, vmax=1)
    line[3].imshow(np.where(objects[:, :, frame], 0.55, 1.0), cmap=grey, vmin=0, vmax=1)
    line[3].contour(mask[:, :, frame], levels=[0.5], colors="#D55E00", linewidths=1.5)
    line[0].set_ylabel(f"frame {frame}")
for axis, title in zip(axes[0], titles, strict=True):
    axis.set_title(title, loc="left", fontsize=10)
for axis in axes.flat:
    axis.set_xticks([])
    axis.set_yticks([])
figure.colorbar(drawn, ax=axes, location="bottom", aspect=60, shrink=0.5, label="outlier probability")
plt.show()
