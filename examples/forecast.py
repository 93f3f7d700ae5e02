"""
Forecast: the power that twenty districts will need
===================================================

Every day a utility sums up how much power each district has used. Weekdays differ from weekends, cold days from mild
ones, and demand drifts. Some meters fail. What will the next two weeks bring, and how sure is that?
"""

import matplotlib.pyplot as plt
import numpy as np

import brtf

# %%
# The truth
# ---------
# Days × districts, three courses that all districts share in different proportions: a level that drifts slowly, the
# weather, which is forgotten within days, and the week. One reading in fifty is wrong.

rng = np.random.default_rng(3)
n_days, n_districts, n_ahead = 140, 20, 14
days = np.arange(n_days)


def drifting(memory):
    """A course whose next value is the last one times the memory, plus something new; of unit variance."""
    course = rng.normal(size=n_days)
    for day in range(1, n_days):
        course[day] = memory * course[day - 1] + np.sqrt(1 - memory**2) * course[day]
    return course


week = np.array([1.0, 1.2, 1.2, 1.1, 0.9, -0.6, -1.0])
courses = np.column_stack([10 + 2 * drifting(0.98), drifting(0.8), week[days % 7]])
sizes = np.column_stack([rng.uniform(5, 20, n_districts), *rng.normal(0, 6, (2, n_districts))])
demand = courses @ sizes.T  # in MWh
readings = demand + rng.normal(0, 3, demand.shape)
failed = rng.uniform(size=readings.shape) < 0.02
readings[failed] += rng.choice([-1, 1], failed.sum()) * rng.uniform(30, 120, failed.sum())

past, future = slice(0, n_days - n_ahead), slice(n_days - n_ahead, n_days)
known, wrong, expected = readings[past], failed[past], demand[past]

# %%
# The fit and the forecast
# ------------------------
# All that is said is that days follow each other. How long each course remembers, and that one of them repeats every
# seven days, is found.

model = brtf.BRTF(modes={0: "ordered"}, random_state=0).fit(known)
ahead = model.forecast(n_ahead, mode=0, level=0.9)

right = ~failed[future]
last_week = np.tile(known[-7:], (2, 1))
errors = {
    name: np.sqrt(np.mean((guess - readings[future])[right] ** 2))
    for name, guess in [("forecast", ahead.mean), ("same day last week", last_week)]
}
inside = (ahead.low <= readings[future]) & (readings[future] <= ahead.high)
print(f"components: true 3, found {model.rank_}")
print(f"noise: true 3 MWh, found {model.noise_variance_**0.5:.2f} MWh")
for name, error in errors.items():
    print(f"error of the next two weeks, {name}: {error:.1f} MWh")
print(f"90 % bands hold the new readings in {inside[right].mean():.0%}")

# %%
# The bands are about 90 % on average over many such series; a single fortnight has few independent surprises, as all
# districts share the same three courses, so that one can be far from that.
#
# The picture
# -----------

figure, axes = plt.subplots(3, 1, figsize=(8, 7), sharex=True, layout="constrained")
shown = [int(np.argmax(sizes[:, 0])), int(np.argmax(np.abs(sizes[:, 2])))]
for axis, district in zip(axes, shown, strict=False):
    axis.plot(days[past], known[:, district], ".", ms=3, color="0.6", label="readings")
    axis.plot(days, demand[:, district], color="0.2", lw=0.8, label="truth")
    axis.plot(ahead.labels, ahead.mean[:, district], color="C0", label="forecast")
    axis.fill_between(
        ahead.labels, ahead.low[:, district], ahead.high[:, district], color="C0", alpha=0.25, label="90 %"
    )
    axis.set(
        title=f"District {district + 1}",
        ylabel="MWh",
        ylim=(demand[:, district].min() - 25, demand[:, district].max() + 25),
    )
axes[0].legend(ncols=4, fontsize="small", loc="lower left")
axes[2].plot(ahead.labels, ahead.std.mean(axis=1), color="C0")
axes[2].plot(days[past], model.predict(return_std=True)[1].mean(axis=1), color="0.4")
axes[2].set(title="Standard deviation: of the past demand, and of the readings to come", xlabel="day", ylabel="MWh")
plt.show()
