"""Anomalies: the false discovery rate that is promised, and the evidence of groups against plain integrals."""

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.special import expit, logsumexp
from scipy.stats import cauchy, norm

from brtf import BRTF
from brtf.datasets import synthetic
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.state import SliceRates
from brtf.results.anomalies import anomaly_table, count_in_words, discoveries
from brtf.results.group_evidence import KINDS, Evidence, integrand
from brtf.results.noisy_slices import noise_evidence
from brtf.results.outlying_slices import rate_evidence
from brtf.results.shifted_slices import shifts_of_slices

SHAPE = (25, 20, 10)


def generated(seed, *, outliers=0.05, size=3.0, noise=0.3):
    """Data of rank 2 and their outliers, Gaussian with a standard deviation ``size``, 20 % missing."""
    rng = np.random.default_rng(seed)
    low_rank = np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(length, 2)) for length in SHAPE))
    outlying = np.where(rng.uniform(size=SHAPE) < outliers, size * rng.normal(size=SHAPE), 0.0)
    data = low_rank + outlying + noise * rng.normal(size=SHAPE)
    return np.where(rng.uniform(size=SHAPE) < 0.2, np.nan, data), outlying


class TestDiscoveries:
    def test_the_longest_list_at_the_rate(self):
        probability = np.array([0.2, 0.99, 0.9, 0.7, 0.0])
        assert discoveries(probability, 0.005).size == 0
        assert discoveries(probability, 0.1).tolist() == [1, 2]  # (0.01 + 0.1) / 2, and with 0.3 it is 0.137
        assert discoveries(probability, 0.14).tolist() == [1, 2, 3]

    @pytest.mark.parametrize("q", [0, 1, -0.1, "a", True, np.nan])
    def test_refuses(self, q):
        with pytest.raises(ValueError, match="q must be a number between 0 and 1"):
            discoveries(np.ones(3), q)


@pytest.mark.parametrize(
    ("kind", "probability", "sentence"),
    [
        ("entries", [], "No entry looks wrong, at a false discovery rate of 10 %."),
        ("entries", [1.0], "1 of 90 entries looks wrong."),
        ("slices", [1.0], "1 slice looks wrong."),
        ("entries", [0.9, 0.8, 0.5], "3 of 90 entries look wrong; expect about 1 false alarm among them."),
        ("entries", [0.9, 0.2, 0.1], "3 of 90 entries look wrong; expect about 2 false alarms among them."),
        ("entries", [0.9, 0.8], "2 of 90 entries look wrong; a false alarm is possible among them."),
        ("fibres", [1.0, 0.99], "2 fibres look wrong; a false alarm is unlikely among them."),
    ],
)
def test_counts_in_words(kind, probability, sentence):
    assert count_in_words(kind, {"probability": np.array(probability)}, 0.1, 90) == sentence


@pytest.fixture(scope="module")
def fits():
    found = []
    for seed in range(8):
        data, outlying = generated(seed)
        found.append((BRTF(random_state=0).fit(data), outlying))
    return found


@pytest.mark.parametrize("q", [0.05, 0.2])
def test_false_discoveries_are_as_promised(fits, q):
    """Some 200 discoveries a fit: the share over all fits has a standard deviation of √(q(1−q)/1600) at most 0.01."""
    false, total = 0, 0
    for model, outlying in fits:
        found = model.anomalies(q)
        wrong = outlying[found.mode_0, found.mode_1, found.mode_2] == 0
        false, total = false + wrong.sum(), total + wrong.size
    assert abs(false / total - q) < 4 * np.sqrt(q * (1 - q) / total)


def test_groups_of_regular_data_are_rarely_listed(fits):
    """Nothing is wrong with any slice, so every listed one is false; over 8 fits of 55 slices at most a few are."""
    assert sum(len(model.anomalies(0.1, of="slices")) for model, _ in fits) <= 2


@pytest.mark.parametrize(("kind", "size"), [("shift", 0.5), ("spread", 1.0)])
def test_slices_that_are_slightly_off(kind, size):
    """An error of half a standard deviation of the noise at every entry, or a noise variance twice as large."""
    data, _ = generated(3, outliers=0.0)
    rng = np.random.default_rng(0)
    error = 0.3 * size
    data[4] += error if kind == "shift" else error * rng.normal(size=SHAPE[1:])
    model = BRTF(random_state=0, noise="common").fit(data)
    in_slice = model.anomalies(0.1)
    assert len(in_slice[in_slice.mode_0 == 4]) <= 2  # one by one they are not noticed
    found = model.anomalies(0.1, of="slices")
    assert len(found) == 1
    assert (found.mode_0[0], found.mode_1[0], found.kind[0]) == (4, None, kind)
    assert model.anomalies(0.1, of="rows").mode_0.tolist() == [4]
    if kind == "shift":
        assert not found.low[0] < found.observed[0] < found.high[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_noisy_slice_is_listed_although_its_noise_was_fitted(seed):
    """Noise per slice explains it; it is an anomaly all the same, unless the noise of slices differs anyway."""
    data, _ = generated(seed, outliers=0.0)
    rng = np.random.default_rng(seed)
    data[4] += 1.5 * rng.normal(size=SHAPE[1:])
    model = BRTF(random_state=0).fit(data)
    assert model.noise_modes_ == (0,)
    found = model.anomalies(0.1, of="slices")
    assert (len(found), found.mode_0[0], found.kind[0]) == (1, 4, "spread")


@pytest.mark.parametrize("shape", [(30, 20, 10), (40, 30)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_slices_that_are_off_together_are_listed_although_they_have_a_component(shape, seed):
    """Three slices are off by two standard deviations of the noise everywhere, which is a component."""
    rng = np.random.default_rng(seed)
    factors = [rng.normal(size=(length, 2)) for length in shape]
    data = np.einsum("ir,jr,kr->ijk", *factors) if len(shape) == 3 else factors[0] @ factors[1].T
    noise = 0.1 * data.std()
    data = data + noise * rng.normal(size=shape)
    data[[3, 8, 20]] += 2 * noise
    found = BRTF(random_state=0).fit(data).anomalies(0.1, of="slices")
    assert set(found.mode_0.dropna().tolist()) == {3, 8, 20} and len(found) == 3
    assert set(found.kind) == {"shift"}
    np.testing.assert_allclose(found.observed - found.expected, 2 * noise, rtol=0.35)


@pytest.mark.parametrize("wrong", [((3, 2),), ((3, 2), (3, 7))])
def test_fibres_that_are_off_are_listed_although_they_have_a_component(wrong):
    """Fibres that are off by four standard deviations of the noise."""
    rng = np.random.default_rng(0)
    data = np.einsum("ir,jr,kr->ijk", *(rng.gamma(3, 1, (length, 2)) for length in (14, 9, 30)))
    noise = 0.08 * data.std()
    data = data + noise * rng.normal(size=data.shape)
    for place in wrong:
        data[place] += 4 * noise
    model = BRTF(random_state=0).fit(data)
    assert model.rank_ == 3
    found = model.anomalies(0.1, of="fibres", mode=2)
    assert {*zip(found.mode_0.tolist(), found.mode_1.tolist(), strict=True)} == {*wrong}
    assert set(found.kind) == {"shift"}
    np.testing.assert_allclose(found.observed - found.expected, 4 * noise, rtol=0.3)


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_a_constant_that_fibres_share_unequally_is_no_anomaly(seed):
    """Sizes of shops and items differ by factors, and a part of the sales is the same every week."""
    rng = np.random.default_rng(seed)
    weeks = [np.ones(15), 1 + 0.5 * np.sin(np.arange(15))]
    data = sum(np.einsum("i,j,k->ijk", rng.lognormal(0, 1, 30), rng.lognormal(0, 0.5, 6), week) for week in weeks)
    data = data + 0.1 * data.std() * rng.normal(size=data.shape)
    assert len(BRTF(random_state=0).fit(data).anomalies(0.1, of="fibres", mode=2)) == 0


class TestShiftEvidence:
    """Eighty rows of rank 2, and a component that three of them use, constant over the others."""

    def made(self, *, shared=0.0):
        rng = np.random.default_rng(1)
        rows, others = rng.normal(size=(80, 3)), rng.normal(size=(40, 3))
        others[:, 2] = 1.0
        rows[:, 2] = shared * rng.normal(size=80)
        rows[:3, 2] = 1.0
        return rows, others, np.broadcast_to(1e-4 * np.eye(3), (80, 3, 3))

    def evidence(self, rows, others, cov):
        factors = [RowGaussians(rows, cov), RowGaussians(others, np.zeros((40, 3, 3)))]
        return shifts_of_slices(factors, 0, np.arange(80), np.full(80, 0.01), np.full(80, 40))[0]

    def test_of_those_that_use_it(self):
        found = self.evidence(*self.made())
        assert (found[:3] > 20).all() and (found[3:] < 0).all()

    def test_does_not_depend_on_the_rotation_of_components(self):
        rows, others, cov = self.made()
        turn = np.random.default_rng(2).normal(size=(3, 3))
        turned = self.evidence(rows @ turn, others @ np.linalg.inv(turn).T, turn.T @ cov @ turn)
        np.testing.assert_allclose(turned, self.evidence(rows, others, cov), rtol=1e-3, atol=0.05)

    def test_none_where_all_use_it(self):
        assert (self.evidence(*self.made(shared=1.0)) < 0).all()

    def test_none_where_it_is_no_constant(self):
        rows, others, cov = self.made()
        others[:, 2] = np.linspace(-1, 3, 40)
        assert (self.evidence(rows, others, cov) < 0).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_slices_full_of_outliers_are_listed_although_their_rate_was_fitted(seed):
    data, _ = generated(seed, outliers=0.02)
    rng = np.random.default_rng(seed)
    data[4] += np.where(rng.uniform(size=SHAPE[1:]) < 0.2, 3.0 * rng.normal(size=SHAPE[1:]), 0.0)
    model = BRTF(random_state=0).fit(data)
    found = model.anomalies(0.1, of="slices")
    assert (len(found), found.mode_0[0], found.kind[0]) == (1, 4, "outliers")


def test_slices_whose_outlier_rates_differ_anyway_are_not_listed():
    rng = np.random.default_rng(0)
    n_listed = 0
    for _ in range(40):
        outlying = rng.binomial(200, rng.beta(2.0, 8.0, 30)).astype(float)
        evidence = rate_evidence(SliceRates((0,), outlying + 1.0, 201.0 - outlying, (1.0, 1.0)))
        n_listed += discoveries(Evidence.probability_of(evidence, evidence), 0.1).size
    assert n_listed <= 4  # of 1200


def test_slices_whose_noise_differs_anyway_are_not_listed():
    n_listed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        true = rng.normal(0.0, rng.uniform(0.2, 2.0), 15)
        found = rng.gamma(60.0, np.exp(true) / 60.0)
        evidence = noise_evidence(Gamma(np.full(15, 60.0), 60.0 / found))
        n_listed += int((Evidence.probability_of(evidence, evidence) > 0.5).sum())
    assert n_listed <= 3
    noisy = Gamma(np.full(15, 60.0), np.where(np.arange(15) == 7, 600.0, 60.0))
    assert Evidence.probability_of(*[noise_evidence(noisy)] * 2)[7] > 0.99


@pytest.mark.parametrize("power", [-660, 660])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_the_list_of_slices_has_the_scale_of_the_data(power):
    """Powers of two, so that no digit changes; the squares of such numbers have no room in float64."""
    data, _ = generated(3, outliers=0.0)
    data[4] += 0.15
    models = (BRTF(random_state=0, noise="common").fit(np.ldexp(data, times)) for times in (0, power))
    small, far = (model.anomalies(of="slices") for model in models)
    assert len(small) == len(far) > 0
    for name in ("observed", "expected", "low", "high"):
        np.testing.assert_allclose(np.ldexp(far[name].to_numpy(), -power), small[name].to_numpy(), rtol=1e-6)


def test_slice_with_a_component_of_its_own():
    """A shift so large that the fit spends a component on it is still an anomaly, fitted or new."""
    data, _ = generated(0, outliers=0.0)
    shifted = data.copy()
    shifted[2] += 1.0
    model = BRTF(random_state=0).fit(shifted)
    assert model.rank_ == 3
    found = model.anomalies(0.1, of="slices")
    assert (len(found), found.mode_0[0], found.kind[0]) == (1, 2, "shift")
    assert found.observed[0] - found.expected[0] == pytest.approx(1.0, abs=0.1)
    assert model.anomalies(0.1, of="rows", Y=shifted[:4]).mode_0.tolist() == [2]


def test_fibres_with_many_outliers():
    data, _ = generated(5, outliers=0.02)
    rng = np.random.default_rng(1)
    data[:, 3, 7] += np.where(rng.uniform(size=SHAPE[0]) < 0.6, 1.5 * rng.normal(size=SHAPE[0]), 0.0)
    found = BRTF(random_state=0).fit(data).anomalies(0.1, of="fibres", mode=0)
    assert list(found)[:2] == ["mode_1", "mode_2"]
    assert (found.mode_1[0], found.mode_2[0], found.kind[0]) == (3, 7, "outliers")
    assert 3 < found.n_outliers[0] < found.n_observed[0] <= SHAPE[0]


class TestEvidence:
    def test_gaussian_noise_by_plain_integrals(self):
        """Without outliers the entries are Gaussian, and the integrals are one-dimensional ones of products."""
        data = synthetic((6, 5, 4), 1, noise=0.1, outliers=0, missing=0.1, seed=2).observed
        model = BRTF(robust=False, random_state=0).fit(data)
        result = model.result_
        found = Evidence.of(result, (1,))
        precision, (centre,) = result.state.tau.mean, (result.low_rank(),)
        variance = np.asarray(result.factor_variance()) * precision
        z = np.sqrt(precision) * (data - centre) / result.scale
        for column, position in enumerate(found.positions[0]):
            group = ~np.isnan(z[:, position])
            own, extra = z[:, position][group], variance[:, position][group]
            regular = np.sum(norm.logpdf(own) - 0.5 * extra)

            def ratio(delta, u, own=own, extra=extra, regular=regular):
                spread = np.sqrt(1 + u**2)
                return np.exp(np.sum(norm.logpdf(own - delta, scale=spread) - 0.5 * extra / spread**2) - regular)

            shift = quad(lambda d, ratio=ratio: cauchy.pdf(d) * ratio(d, 0.0), -30, 30, limit=200, points=[0.0])[0]
            spread = quad(lambda u, ratio=ratio: 2 * cauchy.pdf(u) * ratio(0.0, u), 0, 60, limit=200)[0]
            np.testing.assert_allclose(
                found.by_kind[:2, column], np.log([shift, spread]), atol=2e-2
            )  # quad leaves out the far tails
            assert found.by_kind[2, column] == -np.inf

    def test_share_of_outliers_by_a_plain_integral(self, fits):
        model, _ = fits[0]
        result = model.result_
        found = Evidence.of(result, (0,))
        own, rate = result.state.local_model, result.state.local_model.probability
        probability = result.outlier_probability_at_entries()
        odds_of = np.clip(probability, 1e-300, 1 - 1e-15)
        log_odds = np.log(odds_of) - np.log1p(-odds_of) - np.log(rate) + np.log1p(-rate)  # ln f₁ / f₀
        assert own.has_outliers and result.state.structure is None
        for group in range(3):
            odds = log_odds[found.members == group]
            regular = np.sum(np.logaddexp(np.log1p(-rate), np.log(rate) + odds))
            integral = quad(lambda p, o=odds, r=regular: np.exp(np.log1p(p * np.expm1(o)).sum() - r), 0, 1, limit=400)
            assert found.by_kind[KINDS.index("outliers"), group] == pytest.approx(np.log(integral[0]), abs=1e-3)

    def test_integrand(self):
        """Peaks of any width, at the ends too."""
        centre, width = np.array([0.5, 0.123, 0.0, 0.9999]), np.array([0.3, 1e-4, 1e-6, 1e-9])
        _, logs = integrand(lambda t: norm.logpdf(t, centre, width), 4)
        inside = norm.cdf(1, centre, width) - norm.cdf(0, centre, width)
        np.testing.assert_allclose(np.exp(logsumexp(logs, axis=0)), inside, rtol=1e-5)

    def test_probabilities_average_over_the_share(self):
        evidence = np.array([-1.0, 0.5, 4.0, -2.0])

        def moment(power):
            def at(share):
                likelihood = np.prod(1 - share + share * np.exp(evidence))
                return likelihood * expit(np.log(share / (1 - share)) + evidence[2]) ** power

            return quad(at, 0, 1)[0]

        found = Evidence.probability_of(evidence, evidence)
        assert found[2] == pytest.approx(moment(1) / moment(0), rel=1e-3)
        assert np.argsort(found).tolist() == np.argsort(evidence).tolist()

    def test_huge_evidence_leaves_the_share_its_digits(self):
        """Of groups that are certainly anomalous it does not matter how certainly."""
        large, huge = (np.array([-0.9, size, -0.9]) for size in (1e3, 1e30))
        found = Evidence.probability_of(huge, huge)
        np.testing.assert_allclose(found, Evidence.probability_of(large, large), rtol=1e-12)
        assert found[1] == pytest.approx(1.0)
        sizes = np.geomspace(10, 1e30, 60)
        assert max(Evidence.probability_of(sizes[:n], sizes[:n]).max() for n in range(1, 61)) <= 1.0

    def test_does_not_depend_on_order_or_layout(self, fits):
        """The evidence of a slice is that of its entries, however they are stored."""
        model, _ = fits[1]
        result = model.result_
        evidence = Evidence.of(result, (2,)).total
        coords, values = result.observations.entry_coords(), result.observations.values
        from dataclasses import replace

        from brtf import Observations

        sparse = replace(Observations.from_coords(coords, values, SHAPE), scale=result.scale)
        np.testing.assert_allclose(Evidence.of(replace(result, observations=sparse), (2,)).total, evidence, rtol=1e-9)


class TestTables:
    def test_entries(self, fits):
        model, _ = fits[0]
        found = model.anomalies(0.1)
        assert isinstance(found, pd.DataFrame)
        assert found.probability.is_monotonic_decreasing
        assert np.mean(1 - found.probability) <= 0.1
        coords = np.stack([found.mode_0, found.mode_1, found.mode_2])
        np.testing.assert_allclose(found.expected, model.predict(coords))
        assert (found.low < found.expected).all() and (found.expected < found.high).all()
        outside = (found.observed < found.low) | (found.observed > found.high)
        assert outside.mean() > 0.9

    def test_labels_and_first_position(self):
        data, _ = generated(0)
        data[2] += 0.3
        frame = pd.DataFrame(data[:, :, 0], index=[f"s{i}" for i in range(25)], columns=[f"c{j}" for j in range(20)])
        model = BRTF(random_state=0).fit(frame.rename_axis(index="site", columns="sensor"))
        found = model.anomalies(0.5, of="slices", mode="sensor")
        assert next(iter(found)) == "sensor"
        table = anomaly_table(BRTF(random_state=0).fit(data).result_, 0.1, of="rows", first_position=1)
        assert table["mode_0"].tolist() == [3]

    @pytest.mark.parametrize("unit", ["ns", "us", "D"])
    def test_times_beside_all_positions(self, unit):
        xarray = pytest.importorskip("xarray")
        data = synthetic((12, 10, 8), 1, seed=2).observed
        days = np.arange("2024-03-01", "2024-03-13", dtype="M8[D]").astype(f"M8[{unit}]")
        labelled = xarray.DataArray(data, dims=("day", "a", "b"), coords={"day": days})
        found = BRTF(random_state=0).fit(labelled).anomalies(0.999, of="slices")
        assert found["day"].dtype.kind == "M"
        assert sorted(found["day"].dropna()) == [*pd.date_range("2024-03-01", "2024-03-12")]

    def test_new_slices(self, fits):
        """Fitted slices given again are judged as before; new ones with the fit's own share of anomalies."""
        data, _ = generated(0)
        model, _ = fits[0]
        again = model.anomalies(0.1, Y=data)
        assert abs(len(again) - len(model.anomalies(0.1))) <= 3
        new = data[:3].copy()
        new[1] += 0.5
        assert model.anomalies(0.1, of="rows", Y=new).mode_0.tolist() == [1]

    @pytest.mark.parametrize("options", [{"of": "cells"}, {"of": None}, {"of": "slices", "mode": 3}, {"mode": 0}])
    @pytest.mark.parametrize("more", [{}, {"of": "rows", "mode": 0}])
    def test_refuses(self, fits, options, more):
        with pytest.raises(ValueError, match=r"of must be|mode"):
            fits[0][0].anomalies(**{**options, **more})

    def test_paper_has_entries_only(self):
        data = synthetic((9, 8, 7), 2, outliers=0.05, seed=0).observed
        model = BRTF(4, inference="paper", tol=1e-3, random_state=0).fit(data)
        assert len(model.anomalies(0.1)) > 0
        for options in ({"of": "slices"}, {"Y": data}):
            with pytest.raises(ValueError, match='inference="calibrated"'):
                model.anomalies(**options)

    def test_shared_and_replaced_outliers(self):
        """Groups that cut through shared outliers are judged by the entries they hold."""
        rng = np.random.default_rng(0)
        data = np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(n, 2)) for n in (20, 18, 3))) + 0.1 * rng.normal(
            size=(20, 18, 3)
        )
        data[rng.uniform(size=(20, 18)) < 0.05] += 2.0
        model = BRTF(outlier_modes=[2], random_state=0).fit(data)
        for mode in range(3):
            assert len(model.anomalies(0.1, of="slices", mode=mode)) <= 1
        entries = model.anomalies(0.1)
        assert (entries.groupby(["mode_0", "mode_1"]).size() == 3).all()
