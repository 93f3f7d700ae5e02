"""The page in a real browser: the script redraws and reads values, no network is used, hostile labels stay text."""

import base64
import csv
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from brtf import BRTF
from brtf.datasets import synthetic
from pages import Page

for library in ("jinja2", "PIL"):
    pytest.importorskip(library, reason="a report needs jinja2 and pillow: pip install brtf[viz]")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
from PIL import Image  # noqa: E402

DATA = synthetic((12, 10, 6), 2, outliers=0.08, missing=0.25, seed=0)
EVIL = [
    '<img src=x onerror="window.owned = 1">',
    "</script><script>window.owned = 2</script>",
    '"><svg onload="window.owned = 3">',
    "';window.owned = 4;//",
    "{{ 7*7 }}${window.owned = 5}",
    '=HYPERLINK("javascript:owned")<iframe src="javascript:parent.owned = 6">',
]


@pytest.fixture(scope="module")
def fitted():
    return BRTF(max_rank=4, random_state=0).fit(DATA.observed)


@pytest.fixture(scope="module")
def page(tmp_path_factory, fitted):
    path = tmp_path_factory.mktemp("plain") / "page.html"
    fitted.report(path)
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "page.html"
    names = [*EVIL, *(f"row {k}" for k in range(6))]
    days = [*EVIL, *(f"day {k}" for k in range(4))]
    array = xr.DataArray(
        DATA.observed,
        dims=(EVIL[0], EVIL[1], EVIL[2]),
        coords={EVIL[0]: names, EVIL[1]: days, EVIL[2]: EVIL},
        name=EVIL[1],
    )
    BRTF(max_rank=4, random_state=0).fit(array).report(path)
    return path


class TestSlider:
    def test_redraws_every_picture_and_says_where_it_is(self, visit, page):
        seen = visit(page)
        shown = [seen.pictures()]
        for frame in (3, 5):
            seen.slide_to(frame)
            assert seen.tab.locator(".slide output").nth(2).text_content() == str(frame)
            assert seen.tab.locator("#viewer img").first.get_attribute("alt") == f"Data, mode 2 = {frame}"
            shown.append(seen.pictures())
        for panel in range(4):
            assert shown[0][panel] != shown[1][panel] != shown[2][panel]
        seen.slide_to(0)
        assert seen.pictures() == shown[0]
        assert seen.complaints == []

    def test_the_script_draws_what_the_page_was_written_with(self, visit, page):
        """The first picture comes from Python, all others from the script: the colours are the same, to a shade."""
        written = Page(page.read_text(encoding="utf-8"))
        addresses = [a["src"] for tag, a in written.elements if tag == "img"][:4]
        for shown, address in zip(visit(page).pictures(), addresses, strict=True):
            raw = base64.b64decode(address.removeprefix("data:image/webp;base64,"))
            before = np.asarray(Image.open(io.BytesIO(raw)).convert("RGBA")).astype(int)
            after = np.array(shown).reshape(before.shape)
            visible = before[..., 3] > 64
            np.testing.assert_allclose(after[..., 3], before[..., 3], atol=3)
            np.testing.assert_allclose(after[visible], before[visible], atol=5)

    def test_shows_where_data_are_missing(self, visit, page):
        seen = visit(page)
        for frame in (0, 4):
            seen.slide_to(frame)
            opacity = np.array(seen.pictures()[0]).reshape(12, 10, 4)[..., 3]
            np.testing.assert_array_equal((opacity == 64)[~DATA.mask[:, :, frame]], True)

    def test_moves_by_keys_and_plays(self, visit, page):
        seen = visit(page)
        slider = seen.slider()
        slider.focus()
        seen.tab.keyboard.press("ArrowRight")
        assert slider.input_value() == "1"
        play = seen.tab.locator(".play").nth(2)
        play.click()
        playwright.expect(slider).to_have_value("0")  # past the end it starts again
        play.click()
        stopped = slider.input_value()
        seen.tab.wait_for_timeout(400)  # more than two frames
        assert slider.input_value() == stopped
        assert seen.tab.locator(".slide output").nth(2).text_content() == stopped

    def test_other_modes_are_chosen(self, visit, page):
        seen = visit(page)
        seen.tab.locator("#columns").select_option("mode 2")
        missing = np.array(seen.pictures()[0]).reshape(12, 6, 4)[..., 3] == 64
        np.testing.assert_array_equal(missing[~DATA.mask[:, 0, :]], True)
        assert [seen.slider(mode).is_visible() for mode in range(3)] == [False, True, False]
        seen.slide_to(7, mode=1)
        missing = np.array(seen.pictures()[0]).reshape(12, 6, 4)[..., 3] == 64
        np.testing.assert_array_equal(missing[~DATA.mask[:, 7, :]], True)
        seen.tab.locator("#rows").select_option("mode 2")  # already across: they change places
        assert seen.tab.locator("#columns").input_value() == "0"
        missing = np.array(seen.pictures()[0]).reshape(6, 12, 4)[..., 3] == 64
        np.testing.assert_array_equal(missing.T[~DATA.mask[:, 7, :]], True)
        strips = seen.tab.locator("#viewer figure").first.locator(".strip")
        assert [strips.nth(k).text_content() for k in range(2)] == ["0mode 25", "0mode 011"]


class TestPointer:
    def test_reads_the_values_of_a_picture(self, visit, page, fitted):
        seen = visit(page)
        seen.slide_to(4)
        low_rank, std = fitted.low_rank(), fitted.predict(return_std=True)[1]
        for row, column in ((0, 0), (11, 9), (5, 3)):
            seen.point_at(seen.tab.locator("#viewer img").nth(1), row, column, (12, 10))
            place, *lines = seen.tip().split("\n")
            assert place == f"mode 0 {row}, mode 1 {column}"
            assert [line.rpartition(" ")[0] for line in lines] == [
                "Data",
                "Low rank",
                "Outliers",
                "Standard deviation",
            ]
            data, level, _, spread = (line.rpartition(" ")[2].replace("−", "-") for line in lines)
            assert float(level) == pytest.approx(low_rank[row, column, 4], abs=1e-3)
            assert float(spread) == pytest.approx(std[row, column, 4], rel=2e-3)
            observed = DATA.observed[row, column, 4]
            assert data == "–" if np.isnan(observed) else float(data) == pytest.approx(observed, abs=2e-3)

    def test_reads_the_values_of_charts(self, visit, page, fitted):
        seen = visit(page)
        chart = seen.tab.locator("#components svg[data-nearest]").nth(0)
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        seen.tab.mouse.move(box["x"] + box["width"] - 5, box["y"] + box["height"] / 2)
        assert re.fullmatch(r"11: −?[\d.]+ ± [\d.]+", seen.tip())
        seen.tab.mouse.move(2, 2)
        playwright.expect(seen.tab.locator("#tip")).to_be_hidden()

    def test_reads_the_map_of_outliers(self, visit, page, fitted):
        seen = visit(page)
        rates = 100 * np.ma.masked_array(fitted.outlier_probability(), ~DATA.mask).mean(axis=2)
        row, column = np.unravel_index(rates.argmax(), rates.shape)
        seen.point_at(seen.tab.locator("#outliers image"), row, column, (12, 10))
        place, _, value = seen.tip().partition(": ")
        assert place == f"mode 0 {row}, mode 1 {column}"
        assert float(value) == pytest.approx(rates.max(), rel=0.02)


class TestTables:
    def test_are_sorted_by_a_column(self, visit, page):
        seen = visit(page)
        table = seen.tab.locator("#outliers table")

        def column(place):
            cells = table.locator(f"tbody td:nth-child({place})")
            return [float(cell.get_attribute("data-value")) for cell in cells.all()]

        for place in (1, 4, 7):
            before = column(place)
            table.locator(f"th:nth-child({place}) button").click()
            assert column(place) == sorted(before, reverse=True)
            table.locator(f"th:nth-child({place}) button").click()
            assert column(place) == sorted(before)
        assert table.locator("th[aria-sort]").count() == 1

    def test_are_downloaded_as_they_are_shown(self, visit, page, fitted):
        seen = visit(page)
        with seen.tab.expect_download() as waiting:
            seen.tab.locator("#outliers .save").click()
        assert waiting.value.suggested_filename == "outliers.csv"
        table = pd.read_csv(waiting.value.path())
        expected = fitted.to_frame()
        assert list(table) == ["mode 0", "mode 1", "mode 2", "observed", "low rank", "outlier", "probability"]
        np.testing.assert_allclose(table.to_numpy(), expected.to_numpy().astype(float)[: len(table)], rtol=1e-9)
        assert seen.complaints == []

    def test_no_cell_is_a_formula(self, visit, hostile):
        seen = visit(hostile)
        with seen.tab.expect_download() as waiting:
            seen.tab.locator("#outliers .save").click()
        rows = list(csv.reader(Path(waiting.value.path()).read_text(encoding="utf-8-sig").splitlines()))
        texts = {cell for row in rows[1:] for cell in row[:3]}
        assert any(cell.startswith("'=") for cell in texts), "a label that is a formula is among the outliers"
        for row in rows:
            for cell in row:
                assert not cell.startswith(tuple("=+@\t\r")) and not re.match(r"-\D", cell)


class TestNetwork:
    def test_nothing_is_asked_for(self, visit, page):
        seen = visit(page)
        seen.slide_to(2)
        seen.tab.wait_for_load_state("networkidle")
        assert seen.address in seen.requests
        assert seen.outside == []
        assert seen.complaints == [], "the policy blocks something that the page needs"

    def test_what_slips_in_is_blocked_by_the_policy(self, visit, page, tmp_path):
        """Were a label not escaped, the policy would still hold."""
        markup = page.read_text(encoding="utf-8")
        slipped = (
            "<script>window.owned = 1</script><style>h1 { color: rgb(1, 2, 3) }</style>"
            "<img src='https://example.invalid/a.png' onerror='window.owned = 2'>"
            "<link rel=stylesheet href='https://example.invalid/a.css'>"
        )
        (tmp_path / "page.html").write_text(markup.replace("<main>", f"<main>{slipped}"), encoding="utf-8")
        seen = visit(tmp_path / "page.html")
        seen.tab.wait_for_load_state("networkidle")
        assert seen.tab.evaluate("window.owned") is None
        assert seen.tab.evaluate("getComputedStyle(document.querySelector('h1')).color") != "rgb(1, 2, 3)"
        assert sum("Content Security Policy" in complaint for complaint in seen.complaints) >= 4
        assert seen.failures == dict.fromkeys(seen.outside, "csp")
        assert len(seen.outside) == 2


class TestHostileLabels:
    def test_stay_text(self, visit, hostile, page):
        seen = visit(hostile)
        for frame in range(6):
            seen.slide_to(frame)
        seen.slider().hover()
        seen.point_at(seen.tab.locator("#viewer img").first, 0, 0, (12, 10))
        assert seen.tip().startswith(f"{EVIL[0]} {EVIL[0]}, {EVIL[1]} {EVIL[0]}")
        assert seen.tab.evaluate("window.owned") is None
        assert seen.outside == []
        assert seen.complaints == []
        assert seen.tab.title() == f"{EVIL[1]} · brtf"
        assert seen.tab.locator("h1").text_content() == EVIL[1]
        assert seen.tab.locator("#viewer img").first.get_attribute("alt") == f"Data, {EVIL[2]} = {EVIL[5]}"
        plain = visit(page)
        for kind in ("script", "iframe", "img", "[onerror], [onload]"):
            assert seen.tab.locator(kind).count() == plain.tab.locator(kind).count()

    def test_stand_in_the_charts_as_they_are(self, visit, hostile):
        seen = visit(hostile)
        told = seen.tab.evaluate("[...document.querySelectorAll('svg metadata')].map((tips) => tips.textContent)")
        for label in EVIL:
            assert any(label in tips for tips in told)


@pytest.mark.parametrize("width", [320, 390, 768, 1366, 2560])
@pytest.mark.parametrize("which", ["page", "hostile"])
def test_nothing_is_wider_than_the_screen(visit, request, which, width):
    seen = visit(request.getfixturevalue(which))
    seen.tab.set_viewport_size({"width": width, "height": 800})
    assert seen.tab.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark_follow_the_reader(visit, page):
    seen = visit(page)
    colours = {}
    for scheme in ("light", "dark"):
        seen.tab.emulate_media(color_scheme=scheme)
        colours[scheme] = [
            seen.tab.locator(where).first.evaluate(
                "(element) => { const { backgroundColor, color, fill } = getComputedStyle(element);"
                " return [backgroundColor, color, fill]; }"
            )
            for where in ("body", "h1", ".chart text", ".line.one", ".card")
        ]
    assert all(light != dark for light, dark in zip(colours["light"], colours["dark"], strict=True))


def test_on_paper_tables_are_whole(visit, page):
    """No table is cut by a page or by a frame that scrolls, and the paper has margins."""
    seen = visit(page)
    seen.tab.emulate_media(media="print")
    styles = seen.tab.evaluate(
        """() => [...document.querySelectorAll(".scroll")].map((frame) => {
            const style = getComputedStyle(frame);
            return [style.breakInside, style.overflowX, style.overflowY, style.maxHeight].join(" ");
        })"""
    )
    assert len(styles) > 2 and set(styles) == {"avoid visible visible none"}
    assert "@page { margin: 14mm 13mm; }" in page.read_text(encoding="utf-8")
