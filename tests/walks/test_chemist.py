"""A chemist with fluorescence of mixtures: as many substances as there are, their spectra, tables of loadings."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.io
import xarray as xr

import brtf
from brtf.ranks import core_consistency
from pages import looked_at
from people import alike, brtf_command, mixtures, page_text, scattering


@pytest.fixture(scope="module")
def brought():
    return mixtures()


@pytest.fixture(scope="module")
def model(brought):
    return brtf.BRTF(random_state=0).fit(brought["intensity"])


def test_spectra_are_found_from_mixtures_alone(model, brought):
    assert model.rank_ == 3
    for factor, true in zip(model.factors_, ("concentrations", "emissions", "excitations"), strict=True):
        # Short emissions are measured at few excitations: a bubble there bends the end of a spectrum.
        assert alike(factor, brought[true]).min() > 0.98


def test_components_have_an_order_and_a_sign(model):
    strengths = np.prod([np.linalg.norm(factor, axis=0) for factor in model.factors_], axis=0)
    assert (np.diff(strengths) <= 0).all()
    for factor in model.factors_:  # all but the last by the rule, and the last because spectra are positive
        assert (factor[np.abs(factor).argmax(axis=0), range(3)] > 0).all()


def test_the_number_of_substances_has_a_second_opinion(model, brought):
    clean = np.where(model.outlier_probability() > 0.5, np.nan, brought["intensity"])
    assert core_consistency(model.factors_, clean) > 90


def test_loadings_are_tables_with_wavelengths(brought):
    emission, excitation = np.arange(260, 460, 6.0), np.arange(230, 310, 4.0)
    labelled = xr.DataArray(
        brought["intensity"],
        dims=("sample", "emission", "excitation"),
        coords={"sample": [f"S{number}" for number in range(12)], "emission": emission, "excitation": excitation},
    )
    dataset = brtf.BRTF(random_state=0).fit(labelled).to_xarray()
    spectra = dataset["factor_emission"].to_pandas()
    assert list(spectra.index) == list(emission)
    assert spectra.shape == (34, 3)
    assert list(dataset["factor_sample"].to_pandas().index[:2]) == ["S0", "S1"]


def test_scattered_light_is_left_out(tmp_path, visit):
    landscapes, emissions = scattering()
    landscapes.to_netcdf(tmp_path / "landscapes.nc")
    fitted = ("fit", tmp_path / "landscapes.nc", "--scatter", 20, "--arrangement", "none")
    told = brtf_command(*fitted, "--out", tmp_path / "out")
    assert "rank       3" in told
    assert "scatter    195 of 646 cells of emission and excitation left out: 20 nm above the excitation" in told
    model = brtf.load(tmp_path / "out" / "result.brtf")
    assert alike(model.factors_[1], emissions).min() > 0.9  # the short end of a spectrum lies in the scatter
    with xr.open_dataarray(tmp_path / "out" / "imputed.nc") as filled:
        assert filled.attrs == {"units": "RU"}
        place = {"sample": 0, "emission": -1, "excitation": 3}  # 494 nm, twice 248 nm
        assert float(landscapes[place] - filled[place]) > 20
    assert "Scattered light: 195 of 646 cells" in page_text(tmp_path / "out" / "report.html")
    looked_at(visit, tmp_path / "out" / "report.html")
    said = brtf_command(*fitted[:3], "width=20,raman=none,emission=1,excitation=excitation", "--max-rank", 3, "--json")
    assert "Raman" not in json.loads(said)["scatter"]


def test_new_samples_get_concentrations(model, brought):
    loadings = model.transform(brought["intensity"][:4])
    np.testing.assert_allclose(loadings, model.factors_[0][:4], rtol=0.05, atol=0.02 * np.abs(loadings).max())


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_matlab_in_matlab_out(version, model, brought, tmp_path):
    source = tmp_path / "mixtures.mat"
    if version == "5":
        scipy.io.savemat(source, {"intensity": brought["intensity"]})
    else:
        import h5py

        with h5py.File(source, "w", userblock_size=512) as file:  # MATLAB counts modes from the other end
            data = file.create_dataset("intensity", data=brought["intensity"].T)
            data.attrs["MATLAB_class"] = np.bytes_("double")
        with open(source, "r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file".ljust(116) + bytes(8) + b"\x00\x02IM")
    told = brtf_command("fit", source, "--out", tmp_path / "out")
    assert "rank       3" in told
    if version == "5":
        filled = scipy.io.loadmat(tmp_path / "out" / "imputed.mat")["intensity"]
        np.testing.assert_allclose(filled, model.impute(), rtol=1e-6, atol=1e-6)
    wrong = pd.read_csv(tmp_path / "out" / "outliers.csv")
    assert len(wrong) == np.count_nonzero(model.outlier_probability() > 0.5)
    assert "12 × 34 × 20" in page_text(tmp_path / "out" / "report.html")
