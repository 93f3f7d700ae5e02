"""Local models are one file and one registration: a model from outside fits, is saved and shown like the others."""

import ast
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit, logsumexp

import brtf
import oracle
from brtf import BRTF, load
from brtf.inference.noise_fit import NoisePrior, global_step, joint_step
from brtf.model.evidence_table import tabulate
from brtf.model.local_models import (
    LOCAL_MODELS,
    PROBABILITY_RANGE,
    Branch,
    FlatSlab,
    GaussianSlab,
    LocalModel,
    NoOutliers,
    StudentSlab,
    register,
    rivals,
)
from brtf.model.uncertainty import information
from brtf.view.report.page import build_page

APART = 1e4
"""How many times the variance of small outliers the large ones have."""


@dataclass(frozen=True, eq=False)
class TwoWidths(LocalModel):
    """Gaussian noise; half of the outliers from N(0, ζ/τ̄), half from N(0, 10⁴ ζ/τ̄)."""

    width: float
    description = "Gaussian noise; outliers of two sizes"

    @property
    def parameters(self):
        return np.array([logit(self.probability), math.log(self.width)])

    @classmethod
    def from_parameters(cls, parameters):
        return cls(float(expit(parameters[0])), math.exp(parameters[1]))

    @classmethod
    def limits(cls):
        return [tuple(logit(PROBABILITY_RANGE)), (math.log(4.0), math.log(1e20))]

    @classmethod
    def starts(cls, tau, quantile):
        sizes = (quantile(0.9), quantile(1.0) / APART)
        return [cls(share, max(tau * size, 8.0)) for share in (0.05, 0.3) for size in sizes]

    @classmethod
    def resembling(cls, other):
        return cls(other.probability, max(other.outlier_scale_sq / math.sqrt(APART), 8.0))

    def rescaled(self, ratio):
        return replace(self, width=max(self.width * ratio, 4.0))

    @property
    def outlier_scale_sq(self):
        return math.sqrt(APART) * self.width

    def _terms(self, rho):
        """ln of the two sizes' shares in f₁, and the share κ that noise keeps with each."""
        kappa = 1.0 / (1.0 + self.width * np.array([1.0, APART]))
        return 0.5 * np.log(kappa) - 0.5 * kappa * rho[..., None] - math.log(2.0), kappa

    def branches(self, rho):
        terms, kappa = self._terms(rho)
        log_slab = logsumexp(terms, axis=-1)
        return -0.5 * rho, 1.0, log_slab, np.exp(terms - log_slab[..., None]) @ kappa

    def branch_gradients(self, rho):
        terms, kappa = self._terms(rho)
        log_slab = logsumexp(terms, axis=-1)
        share = np.exp(terms - log_slab[..., None])
        by_width = np.sum(share * -0.5 * (1.0 - kappa) * (1.0 - rho[..., None] * kappa), axis=-1)
        return (
            Branch(-0.5 * rho, -0.5 * rho, (0.0,)),
            Branch(log_slab, -0.5 * rho * (share @ kappa), (by_width,)),
        )

    def mixture(self):
        half = 0.5 * self.probability
        scales = 1.0 + self.width * np.array([0.0, 1.0, APART])
        return np.array([1.0 - self.probability, half, half]), np.full(3, np.inf), scales, np.zeros(3)


@pytest.fixture
def two_widths(monkeypatch):
    """The model, registered for the time of a test."""
    monkeypatch.setitem(LOCAL_MODELS, "TwoWidths", TwoWidths)
    return TwoWidths


def two_sized_data():
    """A tensor of rank two; three in ten entries have outliers ten, or a thousand, times as large as the noise."""
    rng = np.random.default_rng(5)
    factors = [rng.standard_normal((length, 2)) for length in (14, 13, 12)]
    low_rank = np.einsum("ir,jr,kr->ijk", *factors)
    size = np.where(rng.random(low_rank.shape) < 0.5, 0.5, 50.0) * (rng.random(low_rank.shape) < 0.3)
    return low_rank, low_rank + size * rng.standard_normal(size.shape) + 0.05 * rng.standard_normal(size.shape)


class TestFromOutside:
    def test_fits_is_saved_and_shown(self, two_widths, tmp_path, monkeypatch):
        low_rank, data = two_sized_data()
        model = BRTF(random_state=0).fit(data)
        found = model.result_.state.local
        assert type(found) is two_widths
        # 2184 entries: π is known to .01, the variance of the noise to 4 % and that of the outliers to 8 %.
        assert found.probability == pytest.approx(0.3, abs=0.04)
        assert model.noise_variance_ == pytest.approx(0.05**2, rel=0.15)
        assert found.width * model.noise_variance_ == pytest.approx(0.5**2, rel=0.3)
        assert np.sqrt(np.mean((model.low_rank() - low_rank) ** 2)) < 0.02
        assert "outliers" in str(model.summary())
        assert "Gaussian noise; outliers of two sizes" in build_page(model.result_)
        model.save(tmp_path / "fit.brtf")
        again = load(tmp_path / "fit.brtf")
        assert (again.result_.state.local.probability, again.result_.state.local.width) == (
            found.probability,
            found.width,
        )
        np.testing.assert_array_equal(again.result_.std(), model.result_.std())
        np.testing.assert_array_equal(again.outlier_probability(), model.outlier_probability())
        grown = again.partial_fit(data[:3])
        assert type(grown.result_.state.local) is two_widths
        monkeypatch.delitem(LOCAL_MODELS, "TwoWidths")
        with pytest.raises(ValueError, match="the local model 'TwoWidths' is unknown"):
            load(tmp_path / "fit.brtf")

    @pytest.mark.parametrize("collapsed", [False, True], ids=["form 1", "form 2"])
    def test_bound_rises_with_every_number_learnt(self, collapsed):
        rng = np.random.default_rng(0)
        deviation = np.concatenate([rng.standard_normal(800), 10.0 * rng.standard_normal(200)]) ** 2
        histogram, prior = oracle.histogram(deviation, 0.0 if collapsed else 20.0), NoisePrior(1e-6, 1e-6)
        start = TwoWidths(0.5, 1000.0)
        before = oracle.noise_objective(0.1, start, histogram, prior)
        tau, model, value = joint_step(0.1, start, histogram, prior)
        assert value == pytest.approx(oracle.noise_objective(tau, model, histogram, prior), rel=1e-9)
        assert value > before
        for nudge in ((0.01, 0.0, 0.0), (0.0, 0.05, 0.0), (0.0, 0.0, 0.05)):
            for sign in (1, -1):
                other = TwoWidths.from_parameters(model.parameters + sign * np.array(nudge[1:]))
                assert oracle.noise_objective(tau * np.exp(sign * nudge[0]), other, histogram, prior) < value

    def test_a_name_is_taken_once(self):
        with pytest.raises(ValueError, match="a local model of the name 'GaussianSlab' already"):
            register(GaussianSlab)

    def test_what_is_missing_is_an_error(self):
        @dataclass(frozen=True, eq=False)
        class Unfinished(LocalModel):
            description = "half of a model"

        with pytest.raises(TypeError, match="abstract"):
            Unfinished(0.1)


def test_nothing_else_asks_which_local_model_it_is():
    """No type switch on local models outside their own folder: another one would have to be added there too."""
    names = {*LOCAL_MODELS, "LocalModel", "SlabModel", "StudentNoise"}
    asked = []
    for module in sorted(Path(brtf.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and "instance" in node.func.id:
                named = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                asked += [f"{module.name}:{node.lineno}"] if named & names else []
    assert asked == []


class TestRivals:
    def test_are_all_others_with_outliers(self):
        assert set(rivals(GaussianSlab(0.1, 4.0, 100.0))) == {StudentSlab, FlatSlab}

    def test_of_no_outliers_there_are_none(self):
        assert rivals(NoOutliers()) == []

    @pytest.mark.parametrize("kind", [*oracle.SLABS, TwoWidths])
    @pytest.mark.parametrize("other", oracle.SLABS)
    def test_resemble_one_another(self, kind, other):
        """As many outliers, whose typical size is the same up to a factor of three."""
        model = other(0.2, 5.0, 1e5)
        found = kind.resembling(model)
        assert found.probability == 0.2
        assert found.outlier_scale_sq == pytest.approx(model.outlier_scale_sq, rel=1e-12)
        assert kind.resembling(found).parameters == pytest.approx(found.parameters, rel=1e-12)


class TestNoOutliers:
    RHO = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 40)])

    def test_is_gaussian_noise(self):
        found = NoOutliers().posterior(self.RHO)
        wanted = stats.norm.logpdf(np.sqrt(self.RHO)) + 0.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(found.log_evidence, wanted, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(found.weight, 1.0)
        np.testing.assert_array_equal(found.outlier_probability, 0.0)
        np.testing.assert_array_equal((1.0 - found.slab_shrinkage), 0.0)

    def test_branches_gradient_and_table_say_the_same(self):
        model, found = NoOutliers(), NoOutliers().posterior(self.RHO)
        log_spike, weight, log_slab, _ = model.branches(self.RHO)
        np.testing.assert_array_equal(np.logaddexp(log_spike, log_slab), found.log_evidence)
        assert weight == 1.0
        np.testing.assert_array_equal(model.gradient(self.RHO), [found.log_evidence, -0.5 * self.RHO])
        rows = tabulate(model).rows[:-1]
        np.testing.assert_allclose(rows[:, 2], -0.5 * rows[:, 0], rtol=1e-12, atol=1e-12)
        assert information(model) == (1.0, 1.0)

    @pytest.mark.parametrize("step", [joint_step, None], ids=["joint", "global"])
    def test_noise_is_learnt_in_closed_form(self, step):
        rng = np.random.default_rng(1)
        histogram, prior = oracle.histogram(rng.standard_normal(500) ** 2, 7.0), NoisePrior(0.3, 0.2)
        if step is None:
            tau, model, value = global_step(NoOutliers, histogram, prior)
        else:
            tau, model, value = joint_step(3.0, NoOutliers(), histogram, prior)
        best = minimize_scalar(
            lambda log_tau: -oracle.noise_objective(np.exp(log_tau), model, histogram, prior), bounds=(-5, 5)
        )
        assert np.log(tau) == pytest.approx(best.x, abs=1e-5)
        assert value == pytest.approx(-best.fun, rel=1e-12)

    def test_noise_stops_at_the_resolution(self):
        histogram = oracle.histogram(np.full(10, 1e-30), 0.0)
        assert joint_step(1.0, NoOutliers(), histogram, NoisePrior(1e-6, 1e-18, 1e16))[0] == 1e16
