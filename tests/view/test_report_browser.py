"""The page in a real browser: the slider redraws, nothing is asked of the network, hostile labels stay text."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from brtf import BRTF
from brtf.datasets import synthetic

for library in ("jinja2", "PIL"):
    pytest.importorskip(library, reason="a report needs jinja2 and pillow: pip install brtf[viz]")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome on this machine")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DATA = synthetic((12, 10, 6), 2, outliers=0.08, missing=0.25, seed=0)
EVIL = [
    '<img src=x onerror="window.owned = 1">',
    "</script><script>window.owned = 2</script>",
    '"><svg onload="window.owned = 3">',
    "';window.owned = 4;//",
    "{{ 7*7 }}${window.owned = 5}",
    '<iframe src="javascript:parent.owned = 6">',
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser of its own: with a new profile that vanishes."""
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=CHROMIUM, args=FLAGS
        )
        yield context
        context.close()


class Visit:
    """A page that is open, and what it asked for and complained of meanwhile."""

    def __init__(self, browser, path):
        self.tab = browser.new_page()
        self.requests, self.complaints, self.failures = [], [], {}
        self.tab.on("requestfailed", lambda request: self.failures.update({request.url: request.failure}))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss())
        self.address = Path(path).as_uri()
        self.tab.goto(self.address)

    @property
    def outside(self):
        """What was asked for besides the page itself and what is inside it."""
        return [url for url in self.requests if url != self.address and not url.startswith("data:")]

    def pictures(self):
        """What the four pictures show, point by point."""
        return self.tab.evaluate(
            """() => Promise.all([...document.querySelectorAll("#viewer img")].map(async (picture) => {
                await picture.decode();
                const canvas = document.createElement("canvas");
                [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
                const context = canvas.getContext("2d");
                context.drawImage(picture, 0, 0);
                return [...context.getImageData(0, 0, canvas.width, canvas.height).data];
            }))"""
        )

    def slide_to(self, frame):
        self.tab.locator("#slider").fill(str(frame))


@pytest.fixture
def visit(browser):
    opened = []

    def go(path):
        opened.append(Visit(browser, path))
        return opened[-1]

    yield go
    for page in opened:
        page.tab.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "page.html"
    BRTF(max_rank=4, random_state=0).fit(DATA.observed).report(path)
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
            assert seen.tab.locator("#frame").text_content() == f"mode 2 = {frame}"
            assert seen.tab.locator("#viewer img").first.get_attribute("alt") == f"Data, mode 2 = {frame}"
            shown.append(seen.pictures())
        for panel in range(4):
            assert shown[0][panel] != shown[1][panel] != shown[2][panel]
        seen.slide_to(0)
        assert seen.pictures() == shown[0]
        assert seen.complaints == []

    def test_shows_where_data_are_missing(self, visit, page):
        seen = visit(page)
        for frame in (0, 4):
            seen.slide_to(frame)
            opacity = np.array(seen.pictures()[0]).reshape(12, 10, 4)[..., 3]
            np.testing.assert_array_equal((opacity == 64)[~DATA.mask[:, :, frame]], True)

    def test_moves_by_keys_and_plays(self, visit, page):
        seen = visit(page)
        slider = seen.tab.locator("#slider")
        slider.focus()
        seen.tab.keyboard.press("ArrowRight")
        assert slider.input_value() == "1"
        seen.tab.locator("#play").click()
        playwright.expect(slider).to_have_value("0")  # past the end it starts again
        seen.tab.locator("#play").click()
        stopped = slider.input_value()
        seen.tab.wait_for_timeout(400)  # more than two frames
        assert slider.input_value() == stopped
        assert seen.tab.locator("#frame").text_content() == f"mode 2 = {stopped}"


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
        seen.tab.locator("#slider").hover()
        assert seen.tab.evaluate("window.owned") is None
        assert seen.outside == []
        assert seen.complaints == []
        assert seen.tab.title() == f"{EVIL[1]} · brtf"
        assert seen.tab.locator("h1").text_content() == EVIL[1]
        assert seen.tab.locator("#frame").text_content() == f"{EVIL[2]} = {EVIL[5]}"
        plain = visit(page)
        for kind in ("script", "iframe", "img", "[onerror], [onload]"):
            assert seen.tab.locator(kind).count() == plain.tab.locator(kind).count()

    def test_stand_in_the_charts_as_they_are(self, visit, hostile):
        seen = visit(hostile)
        titles = seen.tab.evaluate("[...document.querySelectorAll('svg title')].map((title) => title.textContent)")
        for label in EVIL:
            assert any(label in title for title in titles)


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
