"""The report page: what stands on it, what it refuses, and that it is written wholly or not at all."""

import os
import re
import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner

from brtf import BRTF, FitWarning, Observations, cli
from brtf.data.observe import observe
from brtf.datasets import synthetic, toy_video
from brtf.results.headline import headline
from brtf.view.view_data import Axis, axis_of, factor_profiles, leverages
from pages import Page

for library in ("jinja2", "PIL"):
    pytest.importorskip(library, reason="a report needs jinja2 and pillow: pip install brtf[viz]")
from brtf.view.entries import EntryVector, unseen, values_of  # noqa: E402
from brtf.view.report.charts import profile_chart  # noqa: E402
from brtf.view.report.page import build_page  # noqa: E402
from brtf.view.report.svg import number  # noqa: E402

DATA = synthetic((12, 10, 8), 2, outliers=0.08, missing=0.25, seed=0)
FULL = DATA.low_rank + DATA.outliers + DATA.noise


@pytest.fixture(scope="module")
def model():
    return BRTF(max_rank=4, random_state=0).fit(DATA.observed)


def labelled(values):
    return xr.DataArray(
        values,
        dims=("town", "day", "wavelength"),
        coords={
            "town": [f"Town {k}" for k in range(12)],
            "day": pd.date_range("2024-01-30", periods=10),
            "wavelength": np.linspace(400.0, 470.0, 8),
        },
        name="Measured levels",
    )


class TestPage:
    def test_tells_the_numbers_of_the_fit(self, model):
        page = Page(build_page(model.result_))
        assert "12 × 10 × 8 tensor" in page.text
        assert f"Rank {model.rank_} capped at 4" in page.text
        assert number(np.sqrt(model.noise_variance_), 3) in page.text
        assert model.stop_reason_ in page.text
        for row in model.summary().rows():
            assert " ".join(row) in page.text
        ids = {attributes.get("id") for _, attributes in page.elements}
        assert {"slices", "components", "outliers", "residuals", "course", "details"} <= ids
        links = {a["href"].removeprefix("#") for tag, a in page.elements if tag == "a"}
        assert links <= ids

    def test_refers_to_nothing_outside_itself(self, model):
        page = Page(build_page(model.result_))
        for tag, attributes in page.elements:
            assert tag not in ("link", "iframe", "object", "embed", "base", "form")
            assert "style" not in attributes, "blocked by the page's own policy"
            assert not [name for name in attributes if name.startswith("on")]
            for name in ("src", "href", "srcset", "action", "poster", "data"):
                assert attributes.get(name, "#").startswith(("#", "data:image/webp;base64,"))
        assert "http" not in re.sub(r'xmlns="http://www\.w3\.org/[^"]*"', "", build_page(model.result_)).replace(
            "http-equiv", ""
        )

    def test_the_policy_names_the_scripts_and_styles_that_may_run(self, model):
        markup = build_page(model.result_)
        elements = Page(markup).elements
        (policy,) = [a["content"] for tag, a in elements if a.get("http-equiv") == "Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        nonces = {a["nonce"] for tag, a in elements if tag in ("script", "style") and "nonce" in a}
        assert len(nonces) == 1
        assert f"'nonce-{nonces.pop()}'" in policy
        assert [a.get("type") for tag, a in elements if tag == "script" and "nonce" not in a] == [
            "application/json"
        ] * 2
        assert build_page(model.result_) != markup, "a nonce is used once"

    def test_labels_stand_on_axes_and_in_the_table(self):
        result = BRTF(max_rank=4, random_state=0).fit(labelled(DATA.observed)).result_
        page = Page(build_page(result))
        assert ("title", {}) in page.elements
        assert "Measured levels" in page.text
        table = page.text[page.text.index("The largest") :]
        assert "town day wavelength observed low rank outlier probability" in table
        assert "Town 11" in page.text
        assert re.search(r"Town \d+ 2024-0\d-\d\d 4\d0", table)

    def test_hostile_labels_and_title_become_text(self):
        evil = '</script><img src=x onerror="alert(1)">{{ 7*7 }}'
        names = [evil, *(f"{k}" for k in range(11))]
        array = xr.DataArray(DATA.observed, dims=(evil, "b", "<b>c"), coords={evil: names}, name=evil)
        result = BRTF(max_rank=3, random_state=0).fit(array).result_
        plain = Page(build_page(BRTF(max_rank=3, random_state=0).fit(DATA.observed).result_))
        page = Page(build_page(result, title=f"{evil} & co"))
        for tag in ("script", "img", "b"):
            assert page.count(tag) == plain.count(tag)
        assert evil in page.text
        assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]

    def test_begins_with_the_findings_in_plain_words(self, model):
        words = Page(build_page(model.result_)).text
        for sentence in headline(model.result_):
            assert " ".join(sentence.split()) in words
        assert words.index("patterns explain") < words.index("entries of a 12 × 10 × 8 tensor")

    def test_components_have_the_names_they_are_given(self, model, tmp_path):
        names = ["Tryptophan", "<i>Tyrosine</i>"]
        page = Page(build_page(model.result_, names=names))
        for name in names:
            assert f"{name}, strength" in page.text
        assert "component 0" not in page.text and page.count("i") == 0
        model.save(tmp_path / "fit.brtf")
        outcome = CliRunner().invoke(cli.main, ["report", str(tmp_path / "fit.brtf"), "--names", "Phe, Tyr"])
        assert outcome.exit_code == 0, outcome.output
        assert "Tyr, strength" in (tmp_path / "fit.html").read_text(encoding="utf-8")
        for wrong in (["one"], "ab", ["a", 2]):
            with pytest.raises(ValueError, match="names must be a text for each of the 2 components, strongest first"):
                build_page(model.result_, names=wrong)

    def test_factors_are_tables_too(self, model):
        page = build_page(model.result_)
        mean, std = factor_profiles(model.result_)[1]
        for number_ in (mean[3, 1], std[9, 0]):
            assert f'data-value="{number_:.12g}"' in page
        assert 'data-file="factor of mode 1"' in page
        leverage = leverages(model.result_)[(1,)]
        assert f'data-value="{leverage[4]:.12g}"' in page

    def test_loadings_that_are_never_negative_have_bands_that_end_at_zero(self):
        rng = np.random.default_rng(0)
        level = np.einsum("ir,jr,kr->ijk", *(rng.exponential(size=(length, 2)) for length in (12, 10, 8)))
        modes = dict.fromkeys(range(3), "nonnegative")
        fit = BRTF(max_rank=2, modes=modes, random_state=0).fit(level + 0.3 * rng.standard_normal(level.shape)).result_
        for mean, _ in factor_profiles(fit):
            assert (mean >= 0).all()
        axis, mean, std = axis_of(fit.observations, 0), np.full(12, 0.1), np.full(12, 0.2)
        lowest = [
            max(float(y) for y in re.findall(r",([\d.]+)", re.search(r'class="band one" d="([^"]*)"', chart).group(1)))
            for chart in (str(profile_chart(axis, mean, std, "a", signed=signed)) for signed in (False, True))
        ]
        zeros = [
            float(re.search(r'class="zero" d="M[\d.]+,([\d.]+)', str(profile_chart(axis, mean, std, "a", signed=s)))[1])
            for s in (False, True)
        ]
        assert lowest[0] == pytest.approx(zeros[0], abs=0.1) and lowest[1] > zeros[1] + 1

    def test_positions_in_no_order_are_not_joined_by_a_line(self):
        mean, std = np.array([1.0, 0.5, 2.0, 1.5, 1.0, 3.0]), np.full(6, 0.1)
        axis = Axis("sample", "position", np.arange(6.0), np.arange(6))
        joined, apart = (str(profile_chart(axis, mean, std, "a", joined=one)) for one in (True, False))
        assert "line one" in joined and "whisker" not in joined
        assert "line one" not in apart and apart.count("whisker one") == 6
        assert re.findall(r'class="tick"[^>]*>([^<]+)<', apart)[-6:] == ["0", "1", "2", "3", "4", "5"]
        eleven = Axis("phase", "position", np.arange(11.0), np.arange(11))
        ticks = re.findall(r'class="tick"[^>]*>([^<]+)<', str(profile_chart(eleven, np.ones(11), np.ones(11), "a")))
        assert "2.5" not in ticks

    def test_the_choices_of_the_bound_have_their_nats(self, model):
        words = Page(build_page(model.result_)).text
        for choice in model.choices_.values():
            assert str(choice) in words
        assert words.count(model.summary().numbers["rows"]) == 2  # among the choices and in the details

    def test_a_label_with_half_a_surrogate_pair_is_written(self, tmp_path, model):
        model.report(tmp_path / "page.html", title="broken \ud800 name")
        assert "broken ? name" in (tmp_path / "page.html").read_text(encoding="utf-8")

    def test_other_models_have_their_pages(self):
        paper = BRTF(max_rank=4, inference="paper", tol=1e-2, random_state=0).fit(DATA.observed)
        page = Page(build_page(paper.result_))
        assert "no common distribution of outlier deviations" in page.text
        assert "was accepted only if" not in page.text
        plain = BRTF(max_rank=3, robust=False, random_state=0).fit(FULL - DATA.outliers)
        page = Page(build_page(plain.result_))
        assert "Outliers. The model was fitted without them." in page.text
        assert "All 960 entries" in page.text
        replaced = BRTF(max_rank=3, outlier_kind="replacement", random_state=0).fit(DATA.observed)
        assert "no common distribution of outlier deviations" in Page(build_page(replaced.result_)).text
        shared = BRTF(max_rank=3, outlier_modes=[2], random_state=0).fit(DATA.observed)
        assert "auto, shared along modes 2" in Page(build_page(shared.result_)).text
        per_slice = BRTF(max_rank=3, noise="per-slice", random_state=0).fit(DATA.observed)
        assert "in a typical slice" in Page(build_page(per_slice.result_)).text
        logged = BRTF(max_rank=3, link="log", random_state=0).fit(np.exp(0.3 * DATA.observed))
        assert "(fitted to log(data))" in Page(build_page(logged.result_)).text

    @pytest.mark.parametrize("tensor", [np.zeros((5, 4)), np.full((6, 5, 4), 3.0)], ids=["zero", "constant"])
    def test_nothing_to_find_is_a_page_too(self, tensor):
        found = BRTF(random_state=0).fit(tensor)
        page = Page(build_page(found.result_))
        assert f"Rank {found.rank_} no cap" in page.text

    @pytest.mark.parametrize("unit", [1e-290, 1e290])
    def test_extreme_units(self, unit):
        found = BRTF(max_rank=3, random_state=0).fit(unit * FULL)
        assert "×10" in Page(build_page(found.result_)).text

    def test_earlier_blocks_are_named_as_absent(self):
        streamed = BRTF(max_rank=3, random_state=0)
        for block in (DATA.observed[:8], DATA.observed[8:]):
            streamed.partial_fit(block)
        page = Page(build_page(streamed.result_))
        assert "Data, residuals and outliers at 8 positions of mode 0" in page.text

    def test_many_components_are_drawn_in_part(self, model):
        page = Page(build_page(model.result_, most_components=1))
        assert "The factors of 1 weaker components" in page.text


class TestHeldOut:
    def test_without_it_the_page_says_how_to_get_it(self, model):
        assert "Calibration. No entry was held out" in Page(build_page(model.result_)).text

    def test_entries_held_back_are_compared(self):
        found = BRTF(max_rank=3, calibrate="conformal", random_state=0).fit(FULL)
        page = Page(build_page(found.result_))
        assert "48 entries set aside for calibration" in page.text
        assert "predict_interval scales them" in page.text

    def test_data_with_more_entries_are_compared(self, model):
        page = Page(build_page(model.result_, observe(FULL)))
        n_hidden = np.count_nonzero(~DATA.mask)
        assert f"{n_hidden} entries of the given data that the fit has not seen" in page.text
        assert "seen every entry" in Page(build_page(model.result_, observe(DATA.observed))).text

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_unseen_entries_whatever_the_layout(self, dtype):
        values = FULL.astype(dtype)
        hidden = np.where(DATA.mask, values, np.nan)
        shown = Observations.from_coords(np.stack(np.nonzero(DATA.mask)), values[DATA.mask], values.shape)
        for fitted in (hidden, shown):
            result = BRTF(max_rank=3, max_sweeps=500, tol=1e-3, random_state=0).fit(fitted).result_
            for given in (
                values,
                Observations.from_coords(np.stack(np.nonzero(~DATA.mask)), values[~DATA.mask], values.shape),
            ):
                found = unseen(result, observe(given))
                np.testing.assert_array_equal(found.entry_coords(), np.stack(np.nonzero(~DATA.mask)))
                np.testing.assert_array_equal(found.values, values[~DATA.mask])

    def test_labels_say_where_data_belong(self):
        result = BRTF(max_rank=3, random_state=0).fit(labelled(DATA.observed)).result_
        shuffled = labelled(FULL).isel(town=[3, 1, 7], day=[9, 0])
        found = unseen(result, observe(shuffled))
        wanted = ~DATA.mask[np.ix_([1, 3, 7], [0, 9], range(8))]
        assert found.n_observed == np.count_nonzero(wanted)
        for *at, value in zip(*found.entry_coords(), found.values, strict=True):
            assert value == FULL[tuple(at)]

    def test_rows_that_were_never_seen_do_not_count(self):
        sparse = np.where(np.arange(12)[:, None, None] < 3, np.nan, DATA.observed)
        with pytest.warns(UserWarning, match="3 empty slices"):
            result = BRTF(max_rank=3, random_state=0).fit(sparse).result_
        assert unseen(result, observe(FULL)).entry_coords()[0].min() == 3

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            (FULL[:, :, :7], r"data have shape \(12, 10, 7\), but the fit was of shape \(12, 10, 8\)"),
            (FULL[0], "give data of that order"),
            (FULL + 1.0, r"data differ from what was fitted at 720 entries, first at \[0, 0, 0\]"),
        ],
    )
    def test_data_of_another_fit_are_refused(self, model, given, sentence, tmp_path):
        with pytest.raises(ValueError, match=sentence):
            model.report(tmp_path / "page.html", data=given)
        assert os.listdir(tmp_path) == []

    def test_unknown_labels_are_refused(self):
        result = BRTF(max_rank=3, random_state=0).fit(labelled(DATA.observed)).result_
        other = labelled(FULL).assign_coords(town=[f"Village {k}" for k in range(12)])
        with pytest.raises(ValueError, match="data have Village 0 in mode 0, which is none of the labels"):
            unseen(result, observe(other))

    def test_entries_are_looked_up_in_every_layout(self):
        everywhere = np.indices(FULL.shape).reshape(3, -1)
        coords = np.stack(np.nonzero(DATA.mask))
        for data in (DATA.observed, Observations.from_coords(coords, DATA.observed[DATA.mask], FULL.shape)):
            found = values_of(observe(data)).at(everywhere)
            np.testing.assert_array_equal(found, DATA.observed.ravel())
        np.testing.assert_array_equal(values_of(observe(FULL)).at(everywhere), FULL.ravel())
        nothing = EntryVector((2, 2), np.empty(0), np.empty(0, dtype=np.intp))
        assert np.isnan(nothing.at(np.array([[0], [1]]))).all()


class TestFile:
    def test_model_result_and_command_write_the_same_page(self, tmp_path, model, monkeypatch):
        monkeypatch.setattr("brtf.view.report.template.secrets.token_urlsafe", lambda _: "once")
        model.save(tmp_path / "fit.brtf")
        model.report(tmp_path / "model.html", title="A title")
        model.report(tmp_path / "result.html", title="A title")
        arguments = ["report", str(tmp_path / "fit.brtf"), "--title", "A title"]
        outcome = CliRunner().invoke(cli.main, arguments)
        assert (outcome.exit_code, outcome.stdout) == (0, f"Wrote {tmp_path / 'fit.html'}.\n")
        pages = [(tmp_path / name).read_bytes() for name in ("model.html", "result.html", "fit.html")]
        assert pages[0] == pages[1] == pages[2]

    def test_the_command_reads_data_and_the_shape_of_pictures(self, tmp_path):
        clip = toy_video(height=16, width=20, frames=8, missing=0.2, seed=0)
        filmed = BRTF(max_rank=2, inference="paper", tol=1e-2, random_state=0).fit(clip.observed)
        np.save(tmp_path / "clip.npy", np.where(clip.mask, clip.observed, 128.0))
        filmed.save(tmp_path / "fit.brtf")
        options = ["--data", str(tmp_path / "clip.npy"), "--image-modes", "0,1", "--image-size", "16x20"]
        out = tmp_path / "page.html"
        outcome = CliRunner().invoke(cli.main, ["report", str(tmp_path / "fit.brtf"), "--out", str(out), *options])
        assert outcome.exit_code == 0, outcome.output
        page = Page(out.read_text(encoding="utf-8"))
        assert "entries of the given data" in page.text
        assert "Frames" in page.text

    def test_a_table_is_put_in_place_by_its_labels(self, tmp_path):
        BRTF(max_rank=3, random_state=0).fit(labelled(DATA.observed)).save(tmp_path / "fit.brtf")
        hidden = labelled(np.where(DATA.mask, np.nan, FULL)).to_dataframe().dropna().reset_index()
        hidden.sample(frac=1, random_state=0).to_csv(tmp_path / "hidden.csv", index=False)  # dates become text
        arguments = ["report", str(tmp_path / "fit.brtf"), "--data", str(tmp_path / "hidden.csv")]
        outcome = CliRunner().invoke(cli.main, arguments)
        assert outcome.exit_code == 0, outcome.output
        assert f"{len(hidden)} entries of the given data" in Page((tmp_path / "fit.html").read_text()).text

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["absent.brtf"], "No such file"),
            (["fit.brtf", "--image-modes", "a,b"], "must be integers such as 0,1, got a,b"),
            (["fit.brtf", "--image-modes", "0,9"], "image_modes must be different modes"),
            (["fit.brtf", "--data", "absent.npy"], "absent.npy does not exist"),
        ],
    )
    def test_bad_input_ends_with_two_and_a_sentence(self, tmp_path, monkeypatch, model, arguments, words):
        monkeypatch.chdir(tmp_path)
        model.save("fit.brtf")
        outcome = CliRunner().invoke(cli.main, ["report", *arguments])
        assert outcome.exit_code == 2
        assert words in outcome.stderr
        assert os.listdir() == ["fit.brtf"]

    def test_a_page_that_fails_leaves_the_earlier_one(self, tmp_path, model, monkeypatch):
        target = tmp_path / "page.html"
        target.write_text("earlier")

        def full_disk(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            model.report(target)
        assert target.read_text() == "earlier"
        assert os.listdir(tmp_path) == ["page.html"]

    @pytest.mark.parametrize("library", ["jinja2", "PIL"])
    def test_without_a_library_the_error_says_what_to_install(self, tmp_path, model, monkeypatch, library):
        for name in [name for name in sys.modules if name.startswith("brtf.view.report.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ImportError, match=r'pip install "brtf\[viz\]"'):
            model.report(tmp_path / "page.html")
        model.save(tmp_path / "fit.brtf")
        outcome = CliRunner().invoke(cli.main, ["report", str(tmp_path / "fit.brtf")])
        assert outcome.exit_code == 2
        assert "brtf[viz]" in outcome.stderr


def test_the_page_says_where_the_bound_was_re_scaled(tmp_path):
    data = synthetic((8, 7, 3), 1, outliers=0.05, seed=0).observed
    model = BRTF(outlier_modes=(2,), random_state=0).fit(data)
    assert any(event.startswith("bound re-scaled") for event in model.trace_["event"])
    model.report(tmp_path / "page.html")
    text = Page((tmp_path / "page.html").read_text(encoding="utf-8")).text
    assert re.search(r"The bound was rescaled during the fit \(\d\.\d\d shared entries worth one\)", text)
    assert "The bound is drawn from where it is comparable with the final one." in text


def test_nothing_is_drawn_where_there_are_no_outliers(model, monkeypatch):
    assert "outliers, % of the observed" in build_page(model.result_)
    nowhere = np.full(model.n_observed_, 0.3)
    monkeypatch.setattr(type(model.result_), "outlier_probability_at_entries", lambda result: nowhere)
    text = build_page(model.result_)
    assert "Outlier rate over" not in text and "outliers, % of the observed" not in text


def test_a_rate_of_rounding_is_no_rate():
    """Clean data leave every entry a tiny probability of being an outlier, which is no share to show."""
    clean = BRTF(random_state=0).fit(FULL - DATA.outliers)
    assert 0.0 < clean.outlier_rate_ < 1e-5
    text = Page(build_page(clean.result_)).text
    assert "none" in text and "e-0" not in text.split("Observed")[0]


def test_the_page_says_what_lowered_the_bound():
    data = synthetic((9, 8, 7), 2, seed=0).observed
    with pytest.warns(FitWarning, match="max_rank=1 was reached"):
        capped = BRTF(1, random_state=0).fit(data)
    text = Page(build_page(capped.result_)).text
    assert "accepted only if it raised the bound, except coming down to max_rank. The bound is drawn from" in text
    free = Page(build_page(BRTF(random_state=0).fit(data).result_)).text
    assert "accepted only if it raised the bound. " in free
    assert "is drawn from where" not in free and "another form" not in free and "rescaled" not in free
