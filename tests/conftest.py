"""How generated examples are drawn: always the same ones, or others in every run."""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("random", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("BRTF_EXAMPLES", "same"))
