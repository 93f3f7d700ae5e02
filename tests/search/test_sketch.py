"""Sketches: how many components they show, what they find, and when they may be used."""

from __future__ import annotations

import numpy as np
import pytest

import brtf
from brtf.data.observe import observe
from brtf.data.passes import of_entries, whole
from brtf.inference.problem import Problem
from brtf.inference.statistics import scaled_values
from brtf.inference.trace import Kind
from brtf.search import approximation
from brtf.search.sketch import is_sketched, sketch

SHAPE = (80, 70, 60)
FLOOR = "ir,jr,kr->ijk"


def low_rank(rng, rank, shape=SHAPE):
    columns = [rng.standard_normal((length, rank)) for length in shape]
    return columns, np.einsum(FLOOR, *columns, optimize=True)


def in_layout(tensor, layout, rng):
    """Observations of the tensor, and the share of its entries that they hold."""
    if layout == "complete":
        return observe(tensor), 1.0
    mask = rng.random(tensor.shape) < 0.8
    if layout == "masked":
        return observe(np.where(mask, tensor, np.nan)), mask.mean()
    return observe(brtf.Observations.from_coords(np.array(np.nonzero(mask)), tensor[mask], tensor.shape)), mask.mean()


def sketch_of(observations, rng, most=40):
    return sketch(observations, lambda block: scaled_values(observations, block), rng, most)


@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
class TestSketch:
    @pytest.mark.parametrize("rank", [1, 4, 12])
    def test_shows_as_many_components_as_there_are(self, layout, rank):
        rng = np.random.default_rng(rank)
        _, x = low_rank(rng, rank)
        observations, _ = in_layout(x + 2.0 * rng.standard_normal(SHAPE), layout, rng)
        assert sketch_of(observations, rng).n_components == rank

    def test_rarely_shows_anything_in_noise(self, layout):
        rng, shape = np.random.default_rng(5), (80, 40, 30)
        sizes = np.exp(0.5 * rng.standard_normal((80, 1, 1)))
        noise = [sizes * rng.standard_normal(shape) for _ in range(20)]
        shown = [sketch_of(in_layout(one, layout, rng)[0], rng).n_components for one in noise]
        assert sum(shown) <= 6  # a chance of a few per cent in each of three modes

    def test_finds_the_components(self, layout):
        rng = np.random.default_rng(2)
        truth, x = low_rank(rng, 6)
        observations, share = in_layout(x + 0.5 * rng.standard_normal(SHAPE), layout, rng)
        found = sketch_of(observations, rng)
        columns = found.components(6, observations.scale / share, rng)
        for factor, column in zip(truth, columns, strict=True):
            cosines = np.abs((factor / np.linalg.norm(factor, axis=0)).T @ (column / np.linalg.norm(column, axis=0)))
            assert cosines.max(axis=1).min() > 0.98
        fitted = np.einsum(FLOOR, *columns, optimize=True)
        assert np.linalg.norm(fitted - x) < 0.3 * np.linalg.norm(x)

    def test_core_is_the_projection(self, layout):
        rng = np.random.default_rng(3)
        _, x = low_rank(rng, 3)
        observations, _ = in_layout(x + rng.standard_normal(SHAPE), layout, rng)
        found = sketch_of(observations, rng)
        values = whole(observations, lambda block: scaled_values(observations, block))
        dense = np.zeros(SHAPE)
        dense[tuple(observations.entry_coords())] = values
        projected = np.einsum("ijk,ia,jb,kc->abc", dense, *found.bases, optimize=True)
        np.testing.assert_allclose(found.core, projected, rtol=1e-9, atol=1e-9 * np.abs(projected).max())


class TestShortModes:
    """Modes shorter than the rank, whose rows together are not too many: the first mode shows the components."""

    SHAPE = (400, 7, 6, 8)

    def observations(self, rank, layout, seed):
        rng = np.random.default_rng(seed)
        columns = [rng.standard_normal((length, rank)) for length in self.SHAPE]
        x = np.einsum("ir,jr,kr,lr->ijkl", *columns, optimize=True)
        return in_layout(x + rng.standard_normal(self.SHAPE), layout, rng)[0]

    @pytest.mark.parametrize("layout", ["complete", "masked"])
    def test_hide_fewer_components(self, layout):
        """Not all: components that are alike in all short modes do not stand out beside each other."""
        found = sketch_of(self.observations(20, layout, 0), np.random.default_rng(0))
        n_shown = found.n_components
        assert max(self.SHAPE[1:]) < n_shown <= 20
        assert found.core.shape == (n_shown, *self.SHAPE[1:])
        columns = found.components(n_shown, 1.0, np.random.default_rng(1))
        assert [column.shape for column in columns] == [(length, n_shown) for length in self.SHAPE]

    def test_rarely_show_anything_in_noise(self):
        shown = [
            sketch_of(self.observations(0, "complete", k), np.random.default_rng(k)).n_components for k in range(20)
        ]
        assert sum(shown) <= 6  # a chance of a few per cent in each


def test_is_for_large_data_whose_components_it_shows():
    def sketched(observations):
        return is_sketched(Problem(observations, tuple(range(observations.order)), collapsed=True))

    rng = np.random.default_rng(0)
    assert not sketched(observe(rng.standard_normal((30, 30, 30))))
    assert sketched(observe(rng.standard_normal(SHAPE)))
    # a mode beyond the first that is too long for a Gram matrix
    assert not sketched(observe(rng.standard_normal((300, 1000))))
    # so sparse that a component the bound would accept may stay below the edge
    coords = np.unique(rng.integers(0, 100_000, (3, 300_000)), axis=1)
    sparse = brtf.Observations.from_coords(coords, rng.standard_normal(coords.shape[1]), (100_000,) * 3)
    assert not sketched(observe(sparse))


def test_entries_without_structure_have_an_empty_sketch():
    rng = np.random.default_rng(1)
    observations = observe(rng.standard_normal(SHAPE))
    found = sketch(observations, of_entries(rng.standard_normal(observations.n_observed)), rng, 10)
    assert (found.n_components, [basis.shape for basis in found.bases]) == (0, [(80, 0), (70, 0), (60, 0)])


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 7), (6, 5, 6, 5)])
def test_an_exact_core_is_decomposed_exactly(shape):
    rng = np.random.default_rng(4)
    columns = [rng.standard_normal((length, 4)) for length in shape]
    core = approximation._compose(columns)
    found = approximation._compose(approximation.decompose(core, 4, rng))
    np.testing.assert_allclose(found, core, atol=2e-3 * np.abs(core).max())


def test_a_start_of_many_components_begins_with_completed_data():
    """Form 2 of the bound would make its sweeps expensive; the fit ends in it all the same."""
    data = brtf.datasets.synthetic((80, 70, 60), 18, outliers=0.05, seed=0)
    model = brtf.BRTF(random_state=0, link=None, arrangement=None).fit(data.observed)
    trace = model.result_.trace
    forms = [str(record.event) for record in trace if record.event.kind is Kind.FORM]
    assert forms == ["another form of the bound: weighted entries"]
    assert trace[0].event.kind is Kind.START
    assert model.rank_ == 18
