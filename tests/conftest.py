"""How generated examples are drawn, always the same or others in every run; which fits may be doubted; a browser."""

import os
import shutil

import pytest
from hypothesis import settings

from pages import Visit

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

settings.register_profile("same", derandomize=True)
settings.register_profile("random", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("BRTF_EXAMPLES", "same"))


def pytest_collection_modifyitems(items):
    """Slow tests fit hard data, whose fits may be doubted; elsewhere a doubt that is not expected is an error."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.filterwarnings("ignore::brtf.FitWarning"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser of its own: with a new profile that vanishes."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome on this machine")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=CHROMIUM, args=FLAGS
        )
        yield context
        context.close()


@pytest.fixture
def visit(request):
    """Opens pages, and closes them after the test, which skips the rest where there is no browser."""
    opened = []

    def go(path):
        opened.append(Visit(request.getfixturevalue("browser"), path))
        return opened[-1]

    yield go
    for page in opened:
        page.tab.close()
