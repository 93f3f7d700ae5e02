"""
Chemistry: peaks that overlap, without negative spectra
=======================================================

Liquid chromatography lets the substances of a sample leave a column one after another, and a detector takes a spectrum
several times a second. Substances that are alike leave together: their peaks overlap. Samples × elution times ×
wavelengths is a tensor with one component per substance, and none of its numbers can be negative.
"""

import matplotlib.pyplot as plt
import numpy as np

import brtf

# %%
# The truth
# ---------
# Twelve samples of three substances; the peaks of the second and the third overlap almost entirely. Bubbles in the cell
# spoil 1 % of the readings.

rng = np.random.default_rng(5)
times, wavelengths = np.linspace(0, 60, 80), np.linspace(220, 400, 46)


def peak(axis, centre, width):
    return np.exp(-0.5 * ((axis - centre) / width) ** 2)


amounts = rng.gamma(2.0, 0.5, (12, 3))
elution = np.column_stack([peak(times, 18, 4), peak(times, 33, 5), peak(times, 38, 5)])
spectra = np.column_stack(
    [
        peak(wavelengths, 255, 14) + 0.4 * peak(wavelengths, 320, 18),
        peak(wavelengths, 275, 16) + 0.7 * peak(wavelengths, 225, 12),
        peak(wavelengths, 290, 16) + 0.5 * peak(wavelengths, 345, 15),
    ]
)
signal = np.einsum("ir,jr,kr->ijk", amounts, elution, spectra)
absorbance = signal + rng.normal(0, 0.02, signal.shape)
spoiled = rng.uniform(size=signal.shape) < 0.01
absorbance[spoiled] += rng.exponential(0.6, spoiled.sum())

# %%
# The fit
# -------
# Nothing is negative along any mode; the number of substances is found.

model = brtf.BRTF(modes=dict.fromkeys(range(3), "nonnegative"), random_state=0).fit(absorbance)
found = [factor / factor.max(axis=0) for factor in model.factors_]
errors = brtf.metrics.fme_per_mode(model.factors_, [amounts, elution, spectra])

print(f"substances: true 3, found {model.rank_}")
print(f"least loading: {min(factor.min() for factor in model.factors_):.1e}")
print(f"noise: true 0.02, found {model.noise_variance_**0.5:.4f}")
for name, score in zip(["amounts", "elution profiles", "spectra"], errors, strict=True):
    print(f"{name}: relative error {score:.4f}")

# %%
# The picture
# -----------

figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for axis, axis_values, truth, estimate, title in zip(
    axes[:2], (times, wavelengths), (elution, spectra), found[1:], ("Elution", "Spectra"), strict=True
):
    axis.plot(axis_values, truth / truth.max(axis=0), color="0.7", lw=4)
    axis.plot(axis_values, estimate, lw=1.2)
    axis.set(title=title, yticks=[0, 1])
axes[0].set(xlabel="seconds", ylabel="relative")
axes[1].set(xlabel="nm")
order = [int(np.argmax([abs(np.corrcoef(a, b)[0, 1]) for b in amounts.T])) for a in model.factors_[0].T]
for k, substance in enumerate(order):
    axes[2].plot(amounts[:, substance] / amounts[:, substance].max(), found[0][:, k], "o", ms=4)
axes[2].set(title="Amounts", xlabel="true", ylabel="found", xticks=[0, 1], yticks=[0, 1])
plt.show()
