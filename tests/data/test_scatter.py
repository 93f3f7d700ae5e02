"""Scattered light in fluorescence: which cells show it, and what of it reaches a fit."""

import numpy as np
import pytest
import xarray as xr
from sklearn.exceptions import ConvergenceWarning

import brtf
from brtf.data.checks import Labels
from brtf.data.observe import observe
from brtf.data.scatter import resolved, scattered, without_scatter

EMISSION, EXCITATION = np.arange(272.0, 500.0, 6.0), np.arange(230.0, 330.0, 6.0)
DIMS = ("sample", "emission", "excitation")


def landscapes(seed, n_samples=10):
    """Mixtures of three substances with Rayleigh and Raman scatter of both orders; and the pure mixtures."""
    rng = np.random.default_rng(seed)
    bands = [(EMISSION, [300, 340, 400], 22), (EXCITATION, [250, 275, 300], 14)]
    spectra = [np.exp(-0.5 * ((grid[:, None] - centres) / width) ** 2) for grid, centres, width in bands]
    pure = np.einsum("ir,jr,kr->ijk", rng.uniform(20, 100, (n_samples, 3)), *spectra)
    raman = 1 / (1 / EXCITATION - 3400e-7)
    lines = [(EXCITATION, 150), (2 * EXCITATION, 60), (raman, 8), (2 * raman, 4)]
    light = sum(height * np.exp(-0.5 * ((EMISSION[:, None] - line) / 5) ** 2) for line, height in lines)
    scatter = light * rng.uniform(0.5, 1.5, (n_samples, 1, 1)) * np.exp(0.1 * rng.normal(size=pure.shape))
    measured = np.where(EMISSION[:, None] < EXCITATION - 10, 0, pure) + scatter + rng.normal(0, 0.5, pure.shape)
    coords = {"emission": EMISSION, "excitation": EXCITATION}
    return xr.DataArray(measured, dims=DIMS, coords=coords), xr.DataArray(pure, dims=DIMS, coords=coords)


def fit(data, **options):
    return brtf.BRTF(arrangement=None, random_state=0, **options).fit(data)


class TestWhere:
    def test_lines_by_hand(self):
        emission, excitation = np.array([250.0, 300, 311, 350, 400, 500, 600, 690, 789]), np.array([300.0, 350])
        # water: 1/(1/300 − 3400e-7) is 334.1 and 1/(1/350 − 3400e-7) is 397.3 nm
        np.testing.assert_array_equal(
            scattered(emission, excitation, 10.0, 3400.0).T,
            [[1, 1, 0, 0, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 0, 0, 1, 1]],
        )
        np.testing.assert_array_equal(
            scattered(emission, excitation, 10.0, None).T,
            [[1, 1, 0, 0, 0, 0, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 1, 0]],
        )

    def test_a_shift_beyond_the_excitation_has_no_line(self):
        np.testing.assert_array_equal(scattered(np.array([2e4]), np.array([5e3]), 10.0, 3400.0), [[False]])

    @pytest.mark.parametrize(
        ("said", "dims"),
        [
            (15, ("sample", "Emission", "Ex (nm)")),
            ({"width": 15, "emission": "a", "excitation": "b"}, ("s", "a", "b")),
            ({"width": 15, "emission": 1, "excitation": -1}, ()),
        ],
    )
    def test_modes_are_named_numbered_or_recognised(self, said, dims):
        assert resolved(said, dims, 3) == {"width": 15.0, "emission": 1, "excitation": 2, "raman": 3400.0}

    @pytest.mark.parametrize(
        ("said", "dims", "message"),
        [
            (15, (), "which mode is emission: the modes of Y have no names. Say so, as in scatter="),
            (15, ("a", "emission", "b"), "which mode is excitation: Y has the modes 'a', 'emission', 'b'"),
            ({"width": 1, "emission": "x"}, DIMS, r"names 'x' as emission, but Y has the modes \['sample'"),
            ({"width": 1, "emission": 3}, DIMS, "says that emission is mode 3, but Y has 3 modes"),
            ({"width": 1, "emission": 2}, DIMS, "both mode 2"),
        ],
    )
    def test_refusals(self, said, dims, message):
        with pytest.raises(ValueError, match=message):
            resolved(said, dims, 3)

    @pytest.mark.parametrize(
        "scatter", [0, -1, float("nan"), True, "15", {}, {"raman": 3400}, {"width": 5, "depth": 1}, {"width": [1]}]
    )
    def test_options_that_make_no_sense(self, scatter):
        with pytest.raises(ValueError, match="scatter must be None, a width in nm, or a dictionary"):
            fit(landscapes(0)[0], scatter=scatter)

    def test_wavelengths_are_needed(self):
        data = landscapes(0)[0]
        with pytest.raises(ValueError, match=r"mode 1 has no labels\. Pass an xarray"):
            fit(data.to_numpy(), scatter={"width": 15, "emission": 1, "excitation": 2})
        named = data.assign_coords(emission=[f"{nm} nm" for nm in EMISSION])
        with pytest.raises(ValueError, match="mode 1 has labels that are no positive numbers"):
            fit(named, scatter=15)
        with pytest.raises(ValueError, match="scatter leaves no entry"):
            fit(data, scatter=1e4)


def test_every_layout_loses_the_same_cells():
    data, _ = landscapes(0)
    said = resolved(15, DIMS, 3)
    hidden = np.broadcast_to(scattered(EMISSION, EXCITATION, 15.0, 3400.0), data.shape)
    holes = np.random.default_rng(0).random(data.shape) < 0.3
    coords = np.argwhere(~holes).T
    labels = Labels(DIMS, (None, EMISSION, EXCITATION))
    listed = brtf.Observations.from_coords(coords, data.to_numpy()[~holes], data.shape, labels=labels)
    for given, gone in (
        (observe(data), hidden),
        (observe(data.where(~holes)), hidden | holes),
        (listed, hidden | holes),
    ):
        kept = without_scatter(given, said)
        np.testing.assert_array_equal(kept.entry_coords(), np.argwhere(~gone).T)
        assert kept.values.tolist() == data.to_numpy()[~gone].tolist()
    turned = observe(data.transpose("excitation", "sample", "emission"))
    kept = without_scatter(turned, resolved(15, turned.labels.dims, 3))
    assert kept.n_observed == np.count_nonzero(~hidden)


@pytest.fixture(scope="module")
def model():
    return fit(landscapes(0)[0], scatter=20)


class TestFits:
    @pytest.mark.parametrize("seed", range(3))
    def test_as_many_substances_as_there_are(self, seed):
        """Told nothing of scatter, a fit finds more; without it, three."""
        data, _ = landscapes(seed)
        assert fit(data, scatter=20).rank_ == 3
        with pytest.warns(ConvergenceWarning):
            assert fit(data, max_sweeps=60, tol=1e-3).rank_ > 3

    def test_scatter_is_replaced_by_fluorescence(self, model):
        data, pure = landscapes(0)
        hidden = scattered(EMISSION, EXCITATION, 20.0, 3400.0)
        second = hidden & (EMISSION[:, None] > 1.5 * EXCITATION)  # in the midst of what was measured
        filled = model.impute()
        np.testing.assert_array_equal(filled.to_numpy()[:, ~hidden], data.to_numpy()[:, ~hidden])
        assert np.abs(filled - pure).to_numpy()[:, second].max() < 5  # where up to 90 was measured too much
        assert model.n_observed_ == data.sizes["sample"] * np.count_nonzero(~hidden)

    def test_new_samples_are_read_likewise(self, model, tmp_path):
        data, _ = landscapes(0)
        for new in (data[:4], data[:4].to_numpy()):  # wavelengths are those of the fit
            np.testing.assert_allclose(np.asarray(model.transform(new)), model.factors_[0][:4], rtol=1e-3, atol=1e-3)
        others, _ = landscapes(7)
        listed = model.anomalies(Y=others)
        marked = scattered(EMISSION, EXCITATION, 20.0, 3400.0)
        places = [
            (list(EMISSION).index(row.emission), list(EXCITATION).index(row.excitation)) for row in listed.itertuples()
        ]
        assert not any(marked[place] for place in places)
        assert model.score(data) == model.score(data.to_numpy()) > fit(data, max_rank=3).score(data)
        model.save(tmp_path / "fit.brtf")
        again = brtf.load(tmp_path / "fit.brtf")
        assert again.scatter == {"width": 20.0, "emission": 1, "excitation": 2, "raman": 3400.0}
        assert again.score(data) == model.score(data)
        assert brtf.ranks.split_half(model, mode=0).stable.all()

    def test_it_is_said(self, model):
        told = "195 of 646 cells of emission and excitation left out: 20 nm above the excitation and all below"
        assert told in " ".join(str(model.summary()).split())
        assert told in model.summary().numbers["scatter"]
        plain = brtf.BRTF(1, random_state=0).fit(np.outer(EMISSION, EXCITATION))
        assert plain.summary().numbers["scatter"] is None

    def test_blocks(self):
        data, _ = landscapes(0)
        model = brtf.BRTF(scatter=20, random_state=0).partial_fit(data[:6]).partial_fit(data[6:])
        assert model.rank_ == 3
        assert model.n_observed_ == 4 * np.count_nonzero(~scattered(EMISSION, EXCITATION, 20.0, 3400.0))

    def test_models_are_compared_where_both_look(self):
        found = brtf.evaluate(landscapes(0)[0], model={"all": {"max_rank": 3}, "some": {"max_rank": 3, "scatter": 20}})
        assert len({row["n_held_out"] for row in found.rows}) == 1
        assert found.rows[1]["log_density"] > found.rows[0]["log_density"]

    def test_data_in_chunks_are_refused(self):
        pytest.importorskip("dask.array")
        with pytest.raises(ValueError, match=r"scatter=.* needs data in memory"):
            fit(landscapes(0)[0].chunk({"sample": 5}), scatter=20)
