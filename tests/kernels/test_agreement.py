"""Compiled kernels are compared to the reference before they are first used, and wrong ones stop the program."""

from types import SimpleNamespace

import numpy as np
import pytest

import oracle
from brtf import kernels
from brtf.data.blocks import Block
from brtf.kernels import compiled, reference
from brtf.kernels.agreement import SHAPE, Agreement
from brtf.model.evidence_table import tabulate

RNG = np.random.default_rng(0)
MODEL = oracle.random_slab(next(iter(oracle.SLABS)), RNG)
TABLE = tabulate(MODEL)


def block(layout):
    mask = np.ones(SHAPE, bool)
    coords = np.array(np.nonzero(mask)) if layout == "coordinates" else None
    values = RNG.standard_normal(mask.size)
    return Block(slice(0, mask.size), values, slice(0, SHAPE[0]), mask if layout == "masked" else None, coords, SHAPE)


def with_wrong(kernel, spoil):
    """The compiled kernels, with a mistake in one."""

    def wrong(*arguments):
        return spoil(arguments, getattr(compiled, kernel)(*arguments))

    return SimpleNamespace(**vars(compiled) | {kernel: wrong})


def leave_columns_out(arguments, _):
    arguments[-1][:, 1::2] = 1.0


def weigh_too_much(_, found):
    found.weight[:] *= 1.01
    return found


def shift_rows(_, found):
    found.mean[:, 0] += 0.01 * np.abs(found.mean).max()
    return found


@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
@pytest.mark.parametrize("n_columns", [1, 2, 5, 10, 55])
def test_contractions_agree(layout, n_columns):
    Agreement(compiled, reference).of_contract(block(layout), n_columns)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_posteriors_agree(dtype):
    agreement = Agreement(compiled, reference)
    agreement.of_local_posteriors(TABLE, np.dtype(dtype))
    agreement.of_solve_completed(TABLE, MODEL.largest_weight, np.dtype(dtype))


@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
def test_a_wrong_contraction_stops_the_program(layout):
    agreement = Agreement(with_wrong("contract", leave_columns_out), reference)
    for _ in range(2):  # a trial that failed has not been passed
        with pytest.raises(RuntimeError, match=rf"contract \(of a {layout} block, 4 columns\) differs .* BRTF_KERNELS"):
            agreement.of_contract(block(layout), 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wrong_posteriors_stop_the_program(dtype):
    agreement = Agreement(with_wrong("local_posteriors", weigh_too_much), reference)
    with pytest.raises(RuntimeError, match=r"local_posteriors \(of float\d\d\) differs from the reference"):
        agreement.of_local_posteriors(TABLE, np.dtype(dtype))
    agreement = Agreement(with_wrong("solve_completed", shift_rows), reference)
    with pytest.raises(RuntimeError, match=r"solve_completed \(of float\d\d\) differs from the reference"):
        agreement.of_solve_completed(TABLE, MODEL.largest_weight, np.dtype(dtype))


def test_every_kernel_in_use_is_looked_at_once(monkeypatch):
    """A fit asks for that at the door to the kernels."""
    looks = []
    spied = Agreement(with_wrong("contract", lambda *_: looks.append(1)), reference)
    monkeypatch.setattr(kernels, "_agreement", lambda: spied)
    data, out = block("masked"), np.zeros((SHAPE[0], 4))
    matrices = [RNG.standard_normal((length, 4)) for length in SHAPE]
    kernels.contract(data, data.values, matrices, 0, out)
    n_looks = len(looks)
    kernels.contract(data, data.values, matrices, 0, out)
    assert len(looks) == n_looks > 0
    kernels.contract(data, data.values, [matrix[:, :1].copy() for matrix in matrices], 0, out[:, :1].copy())
    assert len(looks) > n_looks
