"""Chunks that are kept are the chunks that were read, and nothing of them stays behind."""

import os
from dataclasses import replace

import numpy as np
import pytest

import brtf
from brtf import BRTF, Observations
from brtf.data import chunk_cache as held
from brtf.data import coordinate_files as parts
from brtf.data.chunk_cache import Held, compact
from brtf.data.passes import add_up
from brtf.data.plan import Plan
from test_chunks import FEW, SHAPE, add_values, as_parts, uncached

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


NO_MEMORY = Plan(cached_share=0.0, free_share=0.0)


def part_of(n_observed, shape=(300, 200, 70000), dtype=np.float32, seed=0, plan=NO_MEMORY):
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, length, n_observed) for length in shape])
    return Observations(shape, rng.standard_normal(n_observed).astype(dtype), None, coords, 1.0, plan=plan)


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """A directory for what is kept."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.fixture
def store(on_disk):
    store = Held()
    yield store
    store.release()


@pytest.mark.parametrize("length", [2, 256, 257, 65536, 65537, 2**32 + 1])
def test_positions_take_the_smallest_integers_that_hold_them(length):
    part = Observations((2, length), np.zeros(2), None, np.array([[0, 1], [0, length - 1]]), 1.0)
    packed = compact(part)
    assert packed.coords.itemsize == (1 if length <= 2**8 else 2 if length <= 2**16 else 4 if length <= 2**32 else 8)
    np.testing.assert_array_equal(packed.coords, part.coords)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_in_the_file_is_what_was_read(dtype, store):
    written = [compact(part_of(n, dtype=dtype, seed=n)) for n in (1, 7, 1000, 33)]
    for number, part in enumerate(written):
        store.put(("data", number), part)
    assert store.get(("data", 4)) is None
    for number, part in enumerate(written):
        again = store.get(("data", number))
        np.testing.assert_array_equal(again.values, part.values)
        np.testing.assert_array_equal(again.coords, part.coords)
        assert (again.shape, again.coords.dtype, again.values.dtype) == (part.shape, part.coords.dtype, dtype)
        assert again.values.flags.aligned


def test_the_file_has_no_name(store, on_disk):
    store.put(("data", 0), part_of(1000))
    assert store.get(("data", 0)) is not None
    assert list(on_disk.iterdir()) == []


def test_what_is_being_read_outlives_what_is_kept(store):
    part = part_of(1000)
    store.put(("data", 0), part)
    mapped = store.get(("data", 0))
    store.put(("other data", 0), part_of(500, seed=1))
    assert store.get(("data", 0)) is None
    assert store.get(("other data", 0)).n_observed == 500
    np.testing.assert_array_equal(mapped.values, part.values)


@pytest.mark.parametrize("trouble", ["no directory", "disk is full"])
def test_without_room_nothing_is_kept(trouble, store, on_disk, monkeypatch):
    plan = NO_MEMORY
    if trouble == "no directory":
        monkeypatch.setenv("TMPDIR", str(on_disk / "nowhere"))
    else:
        plan = replace(plan, free_share=1.0)
    store.put(("data", 0), part_of(1000, plan=plan))
    assert store.get(("data", 0)) is None


def test_tables_are_decoded_once(on_disk, tmp_path, monkeypatch):
    tensor = np.array(brtf.datasets.synthetic(SHAPE, 2, missing=0.5, seed=0).observed)
    files, original = [], parts._columns
    monkeypatch.setattr(parts, "_columns", lambda path, names: (files.append(path), original(path, names))[1])
    chunked = Observations.from_parts(as_parts(tmp_path / "parts", tensor), shape=SHAPE)
    chunked = uncached(chunked, free_share=0.0)
    files.clear()
    for _ in range(2):
        (total,) = add_up(chunked, lambda: (np.zeros(()),), add_values)
        np.testing.assert_allclose(total, np.nansum(tensor), rtol=1e-10)  # the same terms in another order
        assert len(files) == 4


def test_a_fit_from_the_file_has_the_same_digits_and_leaves_nothing(on_disk, tmp_path):
    tensor = np.array(brtf.datasets.synthetic(SHAPE, 2, missing=0.5, seed=0).observed)
    chunked = Observations.from_parts(as_parts(tmp_path / "parts", tensor), shape=SHAPE)
    from_file = BRTF(**FEW).fit(uncached(chunked, free_share=0.0))
    assert held.HELD._parts == {}
    assert held.HELD._file is None
    from_memory = BRTF(**FEW).fit(chunked)
    assert from_file.bound_ == from_memory.bound_
    assert all(map(np.array_equal, from_file.factors_, from_memory.factors_))
    assert held.HELD._parts == {}


def test_a_worker_keeps_chunks_where_it_spills(monkeypatch):
    class Worker:
        local_directory = "/somewhere"

    monkeypatch.setattr(brtf.data.memory, "_dask_worker", Worker)
    assert brtf.data.memory.scratch_directory() == "/somewhere"
    monkeypatch.setattr(brtf.data.memory, "_dask_worker", lambda: None)
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert brtf.data.memory.scratch_directory() == "/elsewhere"
    monkeypatch.delenv("TMPDIR")
    assert os.path.isdir(brtf.data.memory.scratch_directory())
