"""
Completion: missing traffic counts, and how sure
================================================

Twenty roads are counted for four weeks, every hour. Counters fail: single hours are lost, and now and then a whole
day. A few counts are grossly wrong. What was the traffic in the hours that nobody counted, and how far can the answer
be trusted?
"""

import matplotlib.pyplot as plt
import numpy as np

import brtf

# %%
# The truth
# ---------
# Roads × days × hours, three components: commuters on working days, leisure traffic at weekends, freight at night.
# Counts have a noise of 25 vehicles per hour, 2 % of them are random numbers up to 800, and five in six are missing.

rng = np.random.default_rng(3)
hours, days = np.arange(24), np.arange(28)
n_roads = 20


def peak(centre, width):
    return np.exp(-0.5 * ((hours - centre) / width) ** 2)


working_day = days % 7 < 5
hour_profiles = np.column_stack([peak(8, 1.3) + peak(17.5, 1.8), peak(14, 3.5), peak(1, 3) + peak(25, 3)])
day_profiles = np.column_stack(
    [
        np.where(working_day, 1.0, 0.15) * rng.uniform(0.8, 1.2, days.size),
        np.where(working_day, 0.35, 1.0) * rng.uniform(0.6, 1.4, days.size),
        np.where(days % 7 == 6, 0.2, 1.0) * rng.uniform(0.8, 1.2, days.size),
    ]
)
road_profiles = rng.uniform(0.1, 1.0, (n_roads, 3)) * [600, 350, 250]
traffic = np.einsum("ir,jr,kr->ijk", road_profiles, day_profiles, hour_profiles)

counts = traffic + rng.normal(0, 25, traffic.shape)
wrong = rng.uniform(size=counts.shape) < 0.02
counts[wrong] = rng.uniform(0, 800, wrong.sum())

missing = rng.uniform(size=counts.shape) < 0.75  # single hours
missing |= rng.uniform(size=(n_roads, days.size, 1)) < 0.35  # whole days
counts[missing] = np.nan

# %%
# The fit
# -------
# The rank, the noise and the share of wrong counts are all unknown to the model.

model = brtf.BRTF(random_state=0).fit(counts)
mean = model.low_rank()
low, high = model.predict_interval(level=0.95)

error = brtf.metrics.rrse(mean[missing], traffic[missing])
covered = brtf.metrics.coverage(low[missing], high[missing], traffic[missing])
flagged = (model.outlier_probability() > 0.5)[~missing]
found = brtf.metrics.f_measure(flagged, wrong[~missing])

print(f"{missing.mean():.0%} of the counts are missing")
print(f"rank: true 3, found {model.rank_}")
print(f"noise: true 25 vehicles/h, found {model.noise_variance_**0.5:.1f}")
print(f"wrong counts: true {wrong[~missing].mean():.1%}, found {model.outlier_rate_:.1%}, F-measure {found:.2f}")
print(f"relative error where nothing was counted: {error:.3f}")
print(f"95 % intervals that hold the true traffic there: {covered:.1%}")

# %%
# A wrong count close to the truth cannot be distinguished from noise, so no method could reach an F-measure of 1. The
# coverage of the intervals can be checked at every level:

levels = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])
shares = []
for level in levels:
    ends = model.predict_interval(level=level)
    shares.append(brtf.metrics.coverage(ends[0][missing], ends[1][missing], traffic[missing]))

# %%
# The picture
# -----------
# Top: one road in its second week. The band is wider on days without any count, where it depends on other roads and
# other days alone. Bottom: coverage of the intervals, and where the estimate is least certain.

blue, orange, green, grey = "#0072B2", "#D55E00", "#009E73", "#999999"
road, week = 4, slice(7, 14)
time = 7 + np.arange(7 * 24) / 24
series = {"true": traffic, "counted": counts, "mean": mean, "low": low, "high": high}
series = {name: values[road, week].ravel() for name, values in series.items()}
is_wrong = wrong[road, week].ravel() & ~np.isnan(series["counted"])

figure = plt.figure(figsize=(9, 6), layout="constrained")
above, below = figure.add_gridspec(2, 1, height_ratios=[1.15, 1])
axis = figure.add_subplot(above)
for day in np.flatnonzero(missing[road].all(axis=1)):
    axis.axvspan(day, day + 1, color=grey, alpha=0.18, lw=0, label="no count all day")
axis.fill_between(time, series["low"], series["high"], color=blue, alpha=0.35, lw=0, label="95 % interval")
axis.plot(time, series["mean"], color=blue, lw=1.5, label="estimate")
axis.plot(time, series["true"], color="black", lw=1, ls=(0, (4, 2)), label="truth")
axis.plot(time[~is_wrong], series["counted"][~is_wrong], ".", color=green, ms=6, label="counted")
axis.plot(time[is_wrong], series["counted"][is_wrong], "x", color=orange, ms=8, mew=2, label="counted wrong")
handles, labels = axis.get_legend_handles_labels()
unique = dict(zip(labels, handles, strict=True))
axis.legend(unique.values(), unique.keys(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, fontsize=8)
axis.set(xlabel="day", ylabel=f"road {road}: vehicles per hour", xlim=(7, 14))

left, right = (figure.add_subplot(cell) for cell in below.subgridspec(1, 2, width_ratios=[1, 1.6]))
left.plot([0, 1], [0, 1], color=grey, lw=1, label="honest")
left.plot(levels, shares, "o-", color=blue, ms=4, label="found")
left.set(title="Intervals at missing entries", xlabel="level asked for", ylabel="share that holds the truth")
left.set_aspect("equal")
left.legend(loc="upper left", fontsize=8)

_, std = model.predict(return_std=True)
drawn = right.imshow(std.mean(axis=2), cmap="viridis", aspect="auto", interpolation="nearest")
right.set(title="Standard deviation, mean over the day", xlabel="day", ylabel="road")
figure.colorbar(drawn, ax=right, label="vehicles per hour")
plt.show()
