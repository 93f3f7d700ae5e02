"""Smooth courses and rings on generated data: what they bring where there are some, and that nothing changes elsewhere.

Run ``python benchmarks/forms_of_order.py [--only TEXT] [--seeds N]``. Every line is over the seeds: how often the form
was chosen, the mean gain of the bound, the error of what is hidden relative to that of lines of first order, and the
same of CPU time. "Said" lines compare ``modes={0: "cyclic"}`` with ``modes={0: "ordered"}``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from brtf import BRTF
from brtf.model.row_priors.chain_kinds import LINE
from brtf.search.moves import order_form

Array = NDArray[Any]


def hidden(truth: Array, noise: float, share: float, rng: np.random.Generator) -> Array:
    """Noisy observations, a share of them missing."""
    data = truth + noise * rng.standard_normal(truth.shape)
    data[rng.random(data.shape) < share] = np.nan
    return data


def spectra(n_samples: int, share: float) -> Callable[[np.random.Generator], tuple[Array, Array]]:
    """Samples × wavelengths: mixtures of three Gaussian bands."""

    def generated(rng: np.random.Generator) -> tuple[Array, Array]:
        centre, width = rng.uniform(20.0, 130.0, 3), rng.uniform(6.0, 14.0, 3)
        pure = np.exp(-0.5 * ((np.arange(150)[:, None] - centre) / width) ** 2)
        truth = rng.uniform(0.2, 1.0, (n_samples, 3)) @ pure.T
        return truth, hidden(truth, 0.05, share, rng)

    return generated


def outer(course: Array, rng: np.random.Generator) -> Array:
    """Courses × ten places × six variables."""
    return np.einsum("ir,jr,kr->ijk", course, rng.standard_normal((10, 3)), rng.standard_normal((6, 3)))


def day(rng: np.random.Generator) -> tuple[Array, Array]:
    """Half-hours of a day with a memory of six hours, three hours around midnight not measured."""
    apart = np.abs(np.subtract.outer(np.arange(48), np.arange(48)))
    phi = np.exp(-1.0 / 12.0)
    course = np.linalg.cholesky((phi**apart + phi ** (48 - apart)) / (1.0 + phi**48)) @ rng.standard_normal((48, 3))
    truth = outer(course, rng)
    data = hidden(truth, 0.5, 0.6, rng)
    data[np.r_[-3:3]] = np.nan
    return truth, data


def chains(phi: float) -> Callable[[np.random.Generator], tuple[Array, Array]]:
    """AR(1) courses along a line."""

    def generated(rng: np.random.Generator) -> tuple[Array, Array]:
        course = rng.standard_normal((80, 3))
        for t in range(1, 80):
            course[t] = phi * course[t - 1] + np.sqrt(1.0 - phi**2) * course[t]
        truth = outer(course, rng)
        return truth, hidden(truth, 0.5, 0.7, rng)

    return generated


def walks(rng: np.random.Generator) -> tuple[Array, Array]:
    """Random walks."""
    truth = outer(np.cumsum(rng.standard_normal((100, 3)), axis=0) / 5.0, rng)
    return truth, hidden(truth, 0.5, 0.7, rng)


SETS: dict[str, Callable[[np.random.Generator], tuple[Array, Array]]] = {
    "40 spectra, 80 % missing": spectra(40, 0.8),
    "100 spectra, 90 % missing": spectra(100, 0.9),
    "a day, said, gap over midnight": day,
    "a day, gap over midnight": day,
    "AR(1), φ = 0.95": chains(0.95),
    "AR(1), φ = 0.7": chains(0.7),
    "no order": chains(0.0),
    "random walks": walks,
}


def fit(data: Array, modes: Any) -> tuple[BRTF, float]:
    """A fit, and its CPU seconds."""
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BRTF(modes=modes, random_state=0, link=None, arrangement=None).fit(data)
    return model, time.process_time() - started


def line_only(data: Array, modes: Any) -> tuple[BRTF, float]:
    """The same where every ordered mode is a line of first order."""
    with (
        mock.patch.object(order_form, "smooth_form", lambda steps: LINE),
        mock.patch("brtf.data.positions.Positions.may_go_round", False),
    ):
        return fit(data, modes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    fit(SETS["no order"](np.random.default_rng(0))[1], "auto")  # compiles
    print("| data | form chosen | bound, nats | error | CPU time |\n| --- | --- | --- | --- | --- |")
    for name in [name for name in SETS if options.only in name]:
        rows = []
        for seed in range(options.seeds):
            truth, data = SETS[name](np.random.default_rng(seed))
            unseen = np.isnan(data)
            if unseen[0].all():  # what the ring is for
                unseen[1:-3][unseen[1:-3]] = False
                unseen[np.r_[-3:3]] = True
            said = "said" in name
            (model, seconds), (line, of_line) = (
                fit(data, {0: "cyclic"} if said else "auto"),
                line_only(data, {0: "ordered"} if said else "auto"),
            )
            errors = [np.mean((one.low_rank() - truth)[unseen] ** 2) for one in (model, line)]
            forms = [getattr(prior, "form", LINE) for prior in model.result_.state.row_priors]
            rows.append((any(form.wide for form in forms), model.bound_ - line.bound_, *errors, seconds, of_line))
        chosen, gain, error, of_line, seconds, line_seconds = np.mean(rows, axis=0)
        print(
            f"| {name} | {round(chosen * len(rows))} of {len(rows)} | {gain:+.1f} | {np.sqrt(error / of_line):.2f} "
            f"| {seconds / line_seconds:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
