"""Draw docs/overview.png: one frame of a generated clip, and what a fit makes of it. `python docs/picture.py`."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import brtf

FRAME = 10


def image(tensor, clip):
    """One frame of a (pixels, 3, frames) tensor as an image."""
    return tensor[:, :, FRAME].reshape(clip.height, clip.width, 3)


clip = brtf.datasets.toy_video(height=32, width=48, frames=30, missing=0.3, seed=0)
model = brtf.BRTF(max_rank=5, random_state=0).fit(clip.observed)
low_rank, std = model.predict(return_std=True)

observed = np.nan_to_num(image(clip.observed, clip), nan=255) / 255
outliers = np.linalg.norm(image(model.outliers(), clip), axis=2)
uncertainty = image(std, clip).mean(axis=2)
panels = [
    ("observed: 30 % missing (white)", observed, {}),
    ("low-rank part: the scene, filled in", np.clip(image(low_rank, clip) / 255, 0, 1), {}),
    ("outliers: whatever crosses the scene", outliers, {"cmap": "PuRd", "vmin": 0}),
    (
        "standard deviation: larger where seen less often",
        uncertainty,
        {"cmap": "viridis", "vmax": np.quantile(uncertainty, 0.998)},
    ),
]

plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9})
figure, axes = plt.subplots(2, 2, figsize=(8.6, 5.3), dpi=120, layout="constrained")
for axis, (title, picture, colours) in zip(axes.flat, panels, strict=True):
    drawn = axis.imshow(picture, interpolation="nearest", **colours)
    axis.set_title(title, loc="left")
    axis.set_xticks([])
    axis.set_yticks([])
    if colours:
        figure.colorbar(drawn, ax=axis, pad=0.02, aspect=18).set_label("grey levels")
figure.savefig(Path(__file__).with_name("overview.png"))

found = (model.outlier_probability()[:, 0] > 0.5)[clip.mask[:, 0]]
true = clip.foreground_mask[clip.mask[:, 0]]
print(f"rank {model.rank_}, noise standard deviation {model.noise_variance_**0.5:.2f} grey levels")
print(f"F-measure of the outliers against the moving objects {brtf.metrics.f_measure(found, true):.2f}")
