"""
Anomalies: which readings of a building's sensors are wrong
===========================================================

Thirty thermometers report every half hour for three weeks. Rooms warm up and cool down together, in a few patterns.
Whatever does not follow them is an anomaly: a spike on the line, a window left open, a stuck sensor. There is no
threshold to set: an anomaly is a reading with an outlier probability above ½.
"""

import matplotlib.pyplot as plt
import numpy as np

import brtf

# %%
# The truth
# ---------
# Sensors × days × half hours: the mean temperature of each room, the sun, the heating. Readings have a noise of 0.15
# °C, and one in ten is lost. There are three kinds of anomalies, about 3 % of all readings.

rng = np.random.default_rng(7)
n_sensors, n_days, n_times = 30, 21, 48
hour = np.arange(n_times) / 2
weekday = np.arange(n_days) % 7 < 5

sun = np.exp(-0.5 * ((hour - 14) / 3) ** 2)
heating = 1 / (1 + np.exp(-(hour - 6.5) * 2)) - 1 / (1 + np.exp(-(hour - 18) * 2))
levels = rng.uniform(17, 21, n_sensors)[:, None, None]
sunshine = rng.uniform(0, 4, n_sensors)[:, None, None] * rng.uniform(0.1, 1, n_days)[:, None] * sun
heated = rng.uniform(1, 3, n_sensors)[:, None, None] * np.where(weekday, 1, 0.3)[:, None] * heating
normal = levels + sunshine + heated

readings = normal + rng.normal(0, 0.15, normal.shape)
spikes = rng.uniform(size=readings.shape) < 0.015
readings[spikes] += rng.choice([-1, 1], spikes.sum()) * rng.uniform(1, 8, spikes.sum())

kinds = np.where(spikes, 1, 0)  # 1 spike, 2 open window, 3 stuck
for _ in range(45):  # open windows: hours of cold that come quickly and fade
    sensor, day, start = rng.integers(n_sensors), rng.integers(n_days), rng.integers(8, 36)
    span = slice(start, start + rng.integers(4, 12))
    drop = rng.uniform(2, 5) * np.exp(-np.arange(span.stop - span.start) / 8)
    readings[sensor, day, span] -= drop
    kinds[sensor, day, span] = 2
for sensor, first in [(5, 9), (21, 2)]:  # stuck for two days, too warm
    readings[sensor, first : first + 2] = readings[sensor, first, 0] + 2.5
    kinds[sensor, first : first + 2] = 3

anomalous = kinds > 0
lost = rng.uniform(size=readings.shape) < 0.1
readings[lost] = np.nan

# %%
# The fit
# -------

model = brtf.BRTF(max_sweeps=2000, random_state=0).fit(readings)
probability = model.outlier_probability()
flagged = probability > 0.5

seen = ~lost
found = brtf.metrics.f_measure(flagged[seen], anomalous[seen])
error = np.sqrt(np.mean((model.low_rank() - normal) ** 2))
low, high = model.predict_interval()
covered = brtf.metrics.coverage(low, high, normal)

print(f"components: true 3, found {model.rank_}")
print(f"noise: true 0.15 °C, found {model.noise_variance_**0.5:.3f} °C")
print(f"anomalies: true {anomalous[seen].mean():.1%}, found {model.outlier_rate_:.1%}, F-measure {found:.2f}")
print(f"error of the normal temperature: {error:.3f} °C; 95 % intervals hold it in {covered:.1%}")
for kind, name in [(1, "spikes"), (2, "open windows"), (3, "stuck sensors")]:
    print(f"  {name}: {flagged[seen & (kinds == kind)].mean():.0%} of the readings found")
print(f"  false alarms: {flagged[seen & ~anomalous].mean():.2%} of the normal readings")

# %%
# A stuck sensor is detected while the room is at another temperature; when it is not, its reading is correct. For
# comparison: the usual rule, three robust standard deviations from the median of the sensor at that time of day, and
# the best that any other number than three could do, chosen using the truth.

median = np.nanmedian(readings, axis=1, keepdims=True)
spread = 1.4826 * np.nanmedian(np.abs(readings - median), axis=1, keepdims=True)
score = np.abs(readings - median) / spread
rule = brtf.metrics.f_measure(score[seen] > 3, anomalous[seen])
best_rule, _ = brtf.metrics.best_f_measure(score[seen], anomalous[seen])
print(f"F-measure of the rule of three: {rule:.2f}, at its best threshold {best_rule:.2f}; brtf: {found:.2f}")

# %%
# The picture
# -----------

blue, orange, sky, grey = "#0072B2", "#D55E00", "#56B4E9", "#999999"
shown_days = slice(7, 14)
days = 7 + np.arange(7 * n_times) / n_times


def week(tensor):
    return tensor[:, shown_days].reshape(n_sensors, -1)


figure, axes = plt.subplots(3, 1, figsize=(9, 7.4), layout="constrained", height_ratios=[1, 1, 1.2], sharex=True)
truth = np.where(week(lost), np.nan, week(np.nan_to_num(readings) - normal) * week(anomalous))
shown = {"vmin": -4, "vmax": 4, "cmap": "PuOr", "aspect": "auto", "interpolation": "nearest"}
shown["extent"] = (7, 14, n_sensors - 0.5, -0.5)
axes[0].imshow(truth, **shown)
axes[0].set_title("True anomalies", loc="left")
drawn = axes[1].imshow(np.where(week(flagged), week(model.outliers()), np.where(week(lost), np.nan, 0)), **shown)
axes[1].set_title(f"Found: outlier probability above ½ (F-measure {found:.2f})", loc="left")
for axis in axes[:2]:
    axis.set_facecolor("#dddddd")
    axis.set_ylabel("sensor")
figure.colorbar(drawn, ax=axes[:2], label="°C off normal (grey: lost)", extend="both", aspect=30)

sensor = 5
low, high = (week(ends)[sensor] for ends in model.predict_interval(of="observation", level=0.95))
measured, alarm = week(readings)[sensor], week(flagged)[sensor]
axes[2].fill_between(days, low, high, color=sky, alpha=0.5, lw=0, label="where 95 % of the readings should be")
axes[2].plot(days, week(normal)[sensor], color="black", lw=1, ls=(0, (4, 2)), label="true normal temperature")
axes[2].plot(days[~alarm], measured[~alarm], ".", color=blue, ms=4, label="reading")
axes[2].plot(days[alarm], measured[alarm], "x", color=orange, ms=6, mew=1.5, label="flagged reading")
axes[2].set_title(f"Sensor {sensor}: stuck on days 9 and 10", loc="left")
axes[2].set(xlabel="day", ylabel="°C", xlim=(7, 14))
axes[2].legend(loc="upper center", fontsize=8, ncols=2)
plt.show()
