"""What every baseline keeps to, whatever its mathematics. A method inherits the class and names itself."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from brtf import baselines
from brtf.metrics import rrse

SHAPE = (12, 10, 14)
RANK = 2


def small_problem(*, with_outliers=True):
    """A tensor of CP rank 2 with a little noise and, if wanted, 4 % outliers: data, low-rank part."""
    rng = np.random.default_rng(20)
    factors = [rng.standard_normal((length, RANK)) for length in SHAPE]
    low_rank = np.einsum("ir,jr,kr->ijk", *factors)
    outliers = (rng.random(SHAPE) < 0.04) * rng.uniform(-10, 10, SHAPE) * low_rank.std()
    return low_rank + with_outliers * outliers + 0.01 * rng.standard_normal(SHAPE), low_rank


class BaselineContract:
    """Subclasses set ``name`` and ``params``, all that the method needs on `small_problem`.

    That problem has outliers if the method is robust. ``units_tolerance`` and ``modes_tolerance`` say how far the
    answer may move, relative to itself, when the data come in other units or with their modes in another order; whoever
    sets them says why.
    """

    name = ""
    params: dict = {}  # noqa: RUF012
    units_tolerance = 1e-9  # of a power of two, all numbers are the same but for their exponents
    modes_tolerance = 1e-6  # the same numbers are added in another order, and sweeps carry the rounding on

    @pytest.fixture(scope="class")
    @classmethod
    def problem(cls):
        return small_problem(with_outliers=baselines.describe(cls.name).robust)

    @pytest.fixture(scope="class")
    @classmethod
    def data(cls, problem):
        return problem[0]

    @pytest.fixture(scope="class")
    @classmethod
    def found(cls, data):
        return cls.recover(data)

    @classmethod
    def recover(cls, data, mask=None, **params):
        return baselines.recover(cls.name, data, mask, **(cls.params | params))

    def params_for(self, order):
        """What to give besides for the data with its modes in another order."""
        return {}

    def test_describes_itself(self):
        method = baselines.describe(self.name)
        assert method.name == self.name in baselines.names()
        data, observed, rng, *own = inspect.signature(method.recover).parameters
        assert (data in ("Y", "matrix"), observed, rng) == (True, "observed", "rng")
        assert {*own} == {*method.parameters} - {"mode"}
        assert {*method.needs} <= {*own}
        assert ("mode" in method.parameters) == (method.works_on == "matrix")
        assert method.source.endswith(".")
        assert len(method.recover.__doc__) > 200

    def test_answers_in_the_shape_of_the_data(self, data, found):
        assert found.low_rank.shape == data.shape
        assert np.isfinite(found.low_rank).all()
        assert (found.outliers is not None) == baselines.describe(self.name).robust
        if found.outliers is not None:
            assert found.outliers.shape == data.shape
            assert np.isfinite(found.outliers).all()
        if found.factors is not None:
            assert [factor.shape for factor in found.factors] == [(length, found.rank) for length in data.shape]

    def test_leaves_the_input_alone(self, data):
        locked = data.copy()
        locked.flags.writeable = False
        self.recover(locked)
        np.testing.assert_array_equal(locked, data)

    def test_same_seed_same_answer(self, data, found):
        np.testing.assert_array_equal(self.recover(data, seed=0).low_rank, found.low_rank)

    def test_a_full_mask_is_no_mask(self, data, found):
        np.testing.assert_array_equal(self.recover(data, np.ones(data.shape, dtype=bool)).low_rank, found.low_rank)

    def test_units_do_not_matter(self, data, found):
        scaled = self.recover(1024.0 * data)
        assert rrse(scaled.low_rank / 1024.0, found.low_rank) <= self.units_tolerance

    @pytest.mark.parametrize("order", [(2, 0, 1), (0, 2, 1)])
    def test_order_of_modes_does_not_matter(self, data, found, order):
        turned = self.recover(data.transpose(order), **self.params_for(order))
        assert rrse(turned.low_rank, found.low_rank.transpose(order)) <= self.modes_tolerance

    def test_missing_entries(self, data):
        mask = np.random.default_rng(3).random(data.shape) < 0.8
        if not baselines.describe(self.name).missing:
            with pytest.raises(ValueError, match=r"needs complete data, but \d+ of"):
                self.recover(data, mask)
            return
        found = self.recover(np.where(mask, data, 1e6), mask)
        np.testing.assert_array_equal(self.recover(np.where(mask, data, np.nan)).low_rank, found.low_rank)
        assert np.isfinite(found.low_rank).all()
        if found.outliers is not None:
            assert not found.outliers[~mask].any()

    def test_finds_the_low_rank_part(self, problem, found):
        # With outliers least squares that is told the rank comes to 0.54, the truncated SVD of an unfolding; without,
        # the noise alone makes 0.007, and what a method adds of its own stays below that.
        limit = 0.3 if baselines.describe(self.name).robust else 0.01
        assert rrse(found.low_rank, problem[1]) < limit

    def test_refuses_what_it_does_not_know(self, data):
        with pytest.raises(ValueError, match=f"{self.name} has no parameter 'temperature'. It has: "):
            self.recover(data, temperature=1.0)
        for needed in baselines.describe(self.name).needs:
            with pytest.raises(ValueError, match=f"{self.name} needs {needed}="):
                self.recover(data, **{needed: None})

    @pytest.mark.parametrize("value", [np.inf, -np.inf])
    def test_refuses_infinite_values(self, data, value):
        bad = data.copy()
        bad[1, 2, 3] = value
        with pytest.raises(ValueError, match=r"Y\[1, 2, 3\] is -?inf"):
            self.recover(bad)
