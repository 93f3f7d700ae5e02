"""How generated examples are drawn, always the same ones or others in every run; and which fits may be doubted."""

import os

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("random", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("BRTF_EXAMPLES", "same"))


def pytest_collection_modifyitems(items):
    """Slow tests fit hard data, whose fits may be doubted; elsewhere a doubt that is not expected is an error."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.filterwarnings("ignore::brtf.FitWarning"))
