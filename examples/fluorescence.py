"""
Chemistry: three fluorophores from mixtures
===========================================

A fluorescence measurement of a sample is a matrix: light is sent in at one wavelength (excitation) and comes out at
others (emission). Samples × emission × excitation is a tensor, and by the Beer–Lambert law each fluorophore is one
component of it: concentration ∘ emission spectrum ∘ excitation spectrum. So the spectra of pure substances can be
recovered from mixtures alone, if scattered light does not get in the way.
"""

import matplotlib.pyplot as plt
import numpy as np

import brtf

# %%
# The truth
# ---------
# Fifteen mixtures of three synthetic fluorophores, with maxima near those of the amino acids phenylalanine, tyrosine
# and tryptophan. Light scattered by the solvent comes out at the wavelength of the excitation and at twice that; as
# usual, these readings are left out. Bubbles and cosmic rays corrupt 3 % of the others; which ones is unknown.

rng = np.random.default_rng(1)
names = ["phenylalanine", "tyrosine", "tryptophan"]
excitation, emission = np.arange(220, 311, 3.0), np.arange(250, 621, 5.0)


def band(wavelength, centre, width, tail):
    """A band that falls off more slowly towards longer wavelengths."""
    return np.exp(-0.5 * ((wavelength - centre) / np.where(wavelength < centre, width, width * tail)) ** 2)


emissions = np.column_stack([band(emission, c, w, 1.6) for c, w in [(284, 12), (304, 13), (352, 22)]])
excitations = np.column_stack(
    [
        band(excitation, 258, 8, 1.1),
        band(excitation, 276, 9, 0.8) + 0.6 * band(excitation, 224, 8, 1.2),
        band(excitation, 281, 13, 0.8) + 0.8 * band(excitation, 220, 9, 1.2),
    ]
)
concentrations = rng.uniform(0, 1, (15, 3)) * [60, 100, 100]  # in µmol/l
concentrations[:3] = np.diag([60, 100, 100]) * 0.9 + 4
pure = np.einsum("ir,jr,kr->ijk", concentrations, emissions, excitations)

intensity = pure + rng.normal(0, 0.8, pure.shape)
spoiled = rng.uniform(size=pure.shape) < 0.03
intensity[spoiled] += rng.exponential(40, spoiled.sum())

shift = emission[:, None] - excitation  # how much longer the light that comes out is
intensity[:, (shift < 15) | (np.abs(shift - excitation) < 15)] = np.nan

# %%
# The fit
# -------

model = brtf.BRTF(random_state=0).fit(intensity)
observed = ~np.isnan(intensity)
flagged = model.outlier_probability() > 0.5

match = brtf.metrics.fme_per_mode(model.factors_, [concentrations, emissions, excitations])
found = brtf.metrics.f_measure(flagged[observed], spoiled[observed])
error = brtf.metrics.rrse(model.low_rank()[observed], pure[observed])
low, high = model.predict_interval()
covered = brtf.metrics.coverage(low[observed], high[observed], pure[observed])

print(f"fluorophores: true 3, found {model.rank_}")
print(f"noise: true 0.8, found {model.noise_variance_**0.5:.2f}")
print(f"relative error of the fluorescence: {error:.4f}; 95 % intervals hold it in {covered:.1%}")
print("relative error of concentrations, emission and excitation spectra:", ", ".join(f"{e:.4f}" for e in match))
print(f"spoiled readings: true {spoiled[observed].mean():.1%}, found {model.outlier_rate_:.1%}, F-measure {found:.2f}")

# %%
# Spectra are least certain at their ends, where readings were left out; the standard deviations in the picture show
# this. A model without outliers does worse in every mode, although it is given the number of fluorophores:

plain = brtf.BRTF(max_rank=3, robust=False, random_state=0).fit(intensity)
plain_match = brtf.metrics.fme_per_mode(plain.factors_, [concentrations, emissions, excitations])
print("the same without outliers in the model:", ", ".join(f"{e:.4f}" for e in plain_match))

# %%
# The picture
# -----------
# The order of components and the scale of their columns are arbitrary. To compare, each is paired with the substance
# whose emission it resembles most, and its columns are scaled to the truth by least squares: in a laboratory, that is
# the calibration with a known sample.

alike = np.abs(emissions.T @ (model.factors_[1] / np.linalg.norm(model.factors_[1], axis=0)))
order = alike.argmax(axis=1)


def scaled(mode, truth):
    """Columns of a factor in the truth's order and scale, and their standard deviations."""
    mean = model.factors_[mode][:, order]
    std = np.sqrt(np.einsum("irr->ir", model.factor_covariances_[mode]))[:, order]
    scale = (mean * truth).sum(axis=0) / (mean**2).sum(axis=0)
    return mean * scale, std * np.abs(scale)


colours = ["#E69F00", "#009E73", "#0072B2"]
sample = 12
figure = plt.figure(figsize=(10, 7), layout="constrained")
grid = figure.add_gridspec(2, 6)
images = [figure.add_subplot(grid[0, :3]), figure.add_subplot(grid[0, 3:])]
viridis = plt.get_cmap("viridis").with_extremes(bad="#dddddd")
for axis, title, image in zip(
    images,
    [f"Sample {sample} as measured (grey: left out)", "The same, found: fluorescence alone, gaps filled"],
    [intensity[sample], model.low_rank()[sample]],
    strict=True,
):
    drawn = axis.pcolormesh(emission, excitation, image.T, cmap=viridis, vmin=0, vmax=1.1 * pure[sample].max())
    axis.set_title(title, loc="left", fontsize=10)
    axis.set(xlabel="emission (nm)", ylabel="excitation (nm)")
figure.colorbar(drawn, ax=images, label="intensity", extend="both")

lines = [figure.add_subplot(grid[1, 2 * place : 2 * place + 2]) for place in range(3)]
for axis, mode, wavelength, truth, title in [
    (lines[0], 1, emission, emissions, "Emission spectra"),
    (lines[1], 2, excitation, excitations, "Excitation spectra"),
]:
    mean, std = scaled(mode, truth)
    for name, colour, middle, half, true in zip(names, colours, mean.T, 2 * std.T, truth.T, strict=True):
        axis.fill_between(wavelength, middle - half, middle + half, color=colour, alpha=0.3, lw=0)
        axis.plot(wavelength, middle, color=colour, label=name)
        axis.plot(wavelength, true, color="black", lw=1, ls=(0, (3, 3)))
    axis.set_title(title, loc="left", fontsize=10)
    axis.set(xlabel=f"{title.split()[0].lower()} (nm)", ylabel="relative intensity")
lines[0].set_xlim(250, 480)
lines[0].plot([], [], color="black", lw=1, ls=(0, (3, 3)), label="truth")
lines[0].fill_between([], [], [], color="#999999", alpha=0.4, lw=0, label="± 2 standard deviations")
figure.legend(*lines[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)

mean, std = scaled(0, concentrations)
lines[2].plot([0, 105], [0, 105], color="#999999", lw=1)
for colour, marker, middle, half, true in zip(colours, "os^", mean.T, 2 * std.T, concentrations.T, strict=True):
    lines[2].errorbar(true, middle, half, fmt=marker, color=colour, ms=5)
lines[2].set_title("Concentrations", loc="left", fontsize=10)
lines[2].set(xlabel="true (µmol/l)", ylabel="found (µmol/l)")
plt.show()
