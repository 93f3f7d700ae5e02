"""What a fit holds beside its data: a few states, and a few numbers for every entry of a block."""

import os
import subprocess
import sys
import tracemalloc
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from brtf import BRTF
from brtf.data.memory import available_bytes, check_memory
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.plan import BLOCK_ENTRIES
from brtf.inference.acceleration import Anderson
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.state import Prior, State

RANK = 3
BLOCK_BYTES = 8 * 8 * BLOCK_ENTRIES  # eight numbers for every entry of a block
ON_THE_WAY = 2 * RANK
"""Components that a search may have on its way to a cap."""
STATES = {"complete": 3.2, "masked": 3.1, "coordinates": 4.1}
"""Measured: 2.7, 2.6 and 3.9 of such states. There are the start that waits (its means), the point before the sweep,
the one that is looked at, and the rows that are found meanwhile; of coordinates also packed products and the sums of
two lanes. Any of these once more is at least another half."""


def observed(layout):
    """Many rows and few entries of each, so that the states are most of what a fit holds."""
    rng = np.random.default_rng(0)
    if layout == "coordinates":
        shape, n_observed = (20_000, 20_000, 1_000), 300_000
        coords = np.unravel_index(np.unique(rng.integers(0, np.prod(shape), n_observed)), shape)
        return Observations.from_coords(coords, rng.standard_normal(coords[0].size), shape)
    shape = (40_000, 3, 10)
    factors = [rng.standard_normal((length, 2)) for length in shape]
    values = np.einsum("ir,jr,kr->ijk", *factors) + 0.1 * rng.standard_normal(shape)
    return observe(values.astype(np.float32), rng.random(shape) < 0.5 if layout == "masked" else None)


def peak_of(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def fit(observations):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three sweeps are not enough, and some rows have no entry
        BRTF(RANK, max_sweeps=3, noise="common", link=None, arrangement=None, random_state=0).fit(observations)


@pytest.mark.parametrize("layout", STATES)
def test_a_fit_holds_few_states(layout):
    observations = observed(layout)
    observations = replace(observations, plan=replace(observations.plan, cached_data=0))  # the states alone
    fit(observations)  # kernels and tables are not the data's
    state_bytes = 8 * sum(observations.shape) * (ON_THE_WAY + ON_THE_WAY**2)
    least = min(peak_of(lambda: fit(observations)) for _ in range(3))  # threads that still compile only add to it
    assert least < STATES[layout] * state_bytes + BLOCK_BYTES


def test_nothing_is_held_after_a_fit_but_its_result():
    observations = observed("masked")
    tracemalloc.start()
    try:
        model = BRTF(max_rank=RANK, max_sweeps=3, arrangement=None, random_state=0)
        with pytest.warns(UserWarning, match="max_sweeps"):
            model.fit(observations)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # the state, the same in the user's units, and ln|cov|; blocks and tables are small
    assert held < 2.5 * 8 * sum(observations.shape) * (RANK + RANK**2)
    assert model.result_.state.rank == model.rank_


def test_acceleration_needs_few_vectors():
    rng, shape = np.random.default_rng(0), (20_000, 30, 3)

    def state():
        rows = tuple(RowGaussians(rng.standard_normal((length, RANK)), np.eye(RANK)[None]) for length in shape)
        return State(Prior(), rows, Gamma(np.ones(RANK), np.ones(RANK)), Gamma(np.ones(()), np.ones(())), None)

    states, anderson = [state() for _ in range(9)], Anderson()

    def extrapolate():
        for before, after in pairwise(states):
            anderson.extrapolate(before, after)

    # Seven points of which six are images too, five differences, what LAPACK makes of them, and the new means
    assert peak_of(extrapolate) < 22 * 8 * sum(shape) * RANK


def system(root, groups, limits):
    """The system's own files, as a container sees them."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in groups))
    for path, limit in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return str(root)


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        (["0::/a/b"], {"a/b/memory.max": "max", "a/memory.max": 10**9, "memory.max": 2 * 10**9}, 10**9),
        (["0::/a/b"], {"a/b/memory.max": 10**8, "a/memory.max": 10**9}, 10**8),
        (["0::/"], {"memory.max": 10**9}, 10**9),
        (["0::/../outside"], {"memory.max": 10**9}, 10**9),
        (["5:cpu:/a", "4:memory:/a", "0::/"], {"memory/a/memory.limit_in_bytes": 10**9}, 10**9),
        (["4:cpu,memory:/docker/x"], {"memory/memory.limit_in_bytes": 10**9}, 10**9),
        (["4:memory:/a"], {"memory/a/memory.limit_in_bytes": 2**63 - 4096}, None),
        (["5:cpu:/a"], {"memory/a/memory.limit_in_bytes": 10**6, "memory.max": "max"}, None),
        ([], {}, None),
    ],
)
def test_the_limit_of_a_container_counts(tmp_path, groups, limits, expected):
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_bytes(system(tmp_path, groups, limits)) == (expected or machine)


def test_a_size_beyond_floats_has_its_sentence_too():
    with pytest.raises(MemoryError, match=r"the array would take more than 2\*\*63 bytes, and this process may use"):
        check_memory(10**400, "the array", "cut it")


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_limit_of_a_process_counts(kind):
    program = f"""
import resource, brtf.data.memory
resource.setrlimit(resource.{kind}, (3 * 10**9, resource.RLIM_INFINITY))
assert brtf.data.memory.available_bytes() == 3 * 10**9
brtf.data.memory.check_memory(4 * 10**9, "the array", "cut it")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == (
        "MemoryError: the array would take 4.0 GB, and this process may use 3.0 GB; cut it."
    )
