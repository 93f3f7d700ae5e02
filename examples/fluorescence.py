"""
Chemistry: three fluorophores from mixtures
===========================================

A fluorescence measurement of a sample is a matrix: light is sent in at one wavelength (excitation) and comes out at
others (emission). Samples × emission × excitation is a tensor, and by the Beer–Lambert law each fluorophore is one
component of it: concentration ∘ emission spectrum ∘ excitation spectrum. So the spectra of pure substances can be had
from mixtures alone, if scattered light does not get in the way.
"""

import matplotlib.pyplot as plt
import numpy as np

import brtf

# %%
# The truth
# ---------
# Fifteen mixtures of three generated fluorophores, about where the amino acids phenylalanine, tyrosine and tryptophan
# have their maxima. Light scattered by the solvent comes out at the wavelength of the excitation, and at twice that: as
# is usual, these readings are left out. Bubbles and cosmic rays spoil 3 % of the others: nobody knows which.

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
