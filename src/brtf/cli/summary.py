"""The numbers that every command tells of a fit, as JSON and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from brtf.cli.output import table, times

if TYPE_CHECKING:
    from brtf.estimator import BRTF


def summary(model: BRTF) -> dict[str, Any]:
    """The numbers, by name."""
    result = model.result_
    observations = result.observations
    return {
        "shape": list(observations.shape),
        "n_observed": observations.n_observed,
        "observed_share": observations.n_observed / observations.n_entries,
        "inference": result.settings.inference,
        "transform": result.settings.transform,
        "rank": model.rank_,
        "rank_limit": result.settings.rank_limit(observations.shape),
        "noise_sd": np.sqrt(model.noise_variance_).tolist(),
        "noise_variance": np.asarray(model.noise_variance_).tolist(),
        "noise_modes": None if result.state.slices is None else list(result.state.slices.modes),
        "outlier_rate": model.outlier_rate_,
        "bound": model.bound_,
        "sweeps": model.n_sweeps_,
        "seconds": result.seconds,
        "converged": model.converged_,
        "stop_reason": model.stop_reason_,
    }


def summary_text(numbers: dict[str, Any]) -> str:
    """The numbers, for people."""
    return table(
        [
            ("shape", times(numbers["shape"])),
            ("observed", f"{numbers['n_observed']:,} entries, {100 * numbers['observed_share']:.4g} % of all"),
            ("inference", numbers["inference"]),
            ("fitted to", fitted_to(numbers["transform"])),
            ("rank", f"{numbers['rank']} (at most {numbers['rank_limit']} considered)"),
            ("noise", _noise_text(numbers)),
            ("outliers", _rate_text(numbers["outlier_rate"])),
            ("bound", f"{numbers['bound']:.8g} nats"),
            ("sweeps", f"{numbers['sweeps']} in {numbers['seconds']:.2f} s"),
            ("stopped", numbers["stop_reason"]),
        ]
    )


def fitted_to(transform: str | None) -> str:
    """What the components add up to, and whose units the noise is in."""
    return "the data" if transform is None else f"{transform}(data)"


def _noise_text(numbers: dict[str, Any]) -> str:
    if numbers["noise_modes"] is None:
        return f"standard deviation {numbers['noise_sd']:.4g}, variance {numbers['noise_variance']:.4g}"
    low, middle, high = np.quantile(numbers["noise_sd"], (0.0, 0.5, 1.0))
    modes = ", ".join(str(mode) for mode in numbers["noise_modes"])
    return f"differs along mode {modes}: standard deviation {low:.4g} to {high:.4g}, typically {middle:.4g}"


def _rate_text(rate: float) -> str:
    return "none" if rate < 1e-5 else f"{100 * rate:.3g} % of the observed entries"
