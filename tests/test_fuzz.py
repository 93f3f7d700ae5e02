"""A few of the cases of ``make fuzz``."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_random_inputs_options_and_files_are_answered_or_refused():
    command = [sys.executable, str(ROOT / "benchmarks" / "fuzz.py"), "--cases", "150", "--seed", "3", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "150 cases" in done.stdout and "seed 3" in done.stdout
