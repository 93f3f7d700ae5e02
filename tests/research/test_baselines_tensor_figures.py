"""The figures that the tensor baselines are known by, on problems anybody can draw again."""

import pytest

import brtf
from brtf import baselines
from brtf.metrics import fme, rrse
from brtf.research.baselines.hosvd import leading_bases


def known_problem(letter, seed):
    """The problems that the figures are of: the paper's tensor, noise 0.1 unless said otherwise."""
    settings = {
        "A": {"outliers": 0.0},
        "A0": {"outliers": 0.0, "noise": 0.0},
        "B": {"outliers": 0.05},
        "C": {"outliers": 0.0, "missing": 0.5},
        "D": {"outliers": 0.1, "magnitude": "max", "missing": 0.5},
        "T0": {"outliers": 0.0, "noise": 0.0, "missing": 0.5},
        "T2": {"outliers": 0.1, "missing": 0.5},
        "T4": {"outliers": 0.05, "noise": 0.0},
    }
    if letter == "G":
        return brtf.datasets.synthetic((30, 30, 30), 5, noise=0.01, seed=seed)
    return brtf.datasets.paper_synthetic(**settings[letter], seed=seed)


# Method, parameters, problem, and the range of the error over five draws as first measured, with other draws.
# CP-ARD and Tucker-ARD take outliers for components: that they fail so on B is what they are known for.
FIGURES = [
    ("cp-als", {"rank": 3}, "A", 0.0089, 0.0096),
    ("cp-als", {"rank": 3}, "B", 0.115, 0.133),
    ("cp-als", {"rank": 3}, "A0", 0, 1e-8),
    ("hosvd", {"ranks": 3}, "A", 0.0090, 0.0097),
    ("hosvd", {"ranks": 3}, "B", 0.161, 0.189),
    ("hosvd", {"ranks": 3}, "A0", 0, 1e-14),
    ("cp-ard", {}, "A", 0.0093, 0.0111),
    ("cp-ard", {}, "B", 0.55, 0.58),
    ("cp-ard", {}, "G", 0.013, 0.014),
    ("tucker-ard", {"max_ranks": 10}, "A", 0.0091, 0.0096),
    ("tucker-ard", {"max_ranks": 10}, "B", 0.435, 0.449),
    ("tucker-ard", {"max_ranks": 10}, "G", 0.013, 0.014),
    ("cpwopt", {"rank": 3}, "C", 0.0121, 0.0127),
    ("cpwopt", {"rank": 3}, "D", 0.0468, 0.0489),
    ("cpwopt", {"rank": 3}, "T0", 0, 1.5e-6),
    ("cpnls", {"rank": 3}, "C", 0.0121, 0.0127),
    ("cpnls", {"rank": 3}, "D", 0.0468, 0.0489),
    ("cpnls", {"rank": 3}, "T0", 0, 1e-14),
    ("mgpcp", {}, "C", 0.0128, 0.0142),
    ("mgpcp", {}, "D", 0, 0.072),
    ("mgpcp", {}, "T0", 0, 1.2e-5),
    ("horpca", {}, "A", 0.083, 0.084),
    ("horpca", {}, "B", 0.0934, 0.0942),
    ("horpca", {}, "C", 0.0595, 0.0615),
    ("horpca", {}, "D", 0.070, 0.0732),
    ("horpca", {}, "T0", 0, 2.4e-4),
    ("horpca", {}, "T2", 0.0746, 0.0747),
    ("horpca", {}, "T4", 0, 6.3e-5),
    ("horpca", {"sparsity": 0.5}, "B", 0.0458, 0.0460),
    ("horpca", {"sparsity": 0.5}, "C", 0.143, 0.143),
    ("horpca", {"sparsity": 0.5}, "D", 0.227, 0.227),
    # Least squares that knows the rank, and on D and T2 the outliers, comes to 0.0125 on C and 0.0132 there.
    ("huber", {"rank": 3}, "A", 0.0083, 0.0090),
    ("huber", {"rank": 3}, "B", 0.0092, 0.0101),
    ("huber", {"rank": 3}, "C", 0.0121, 0.0140),
    ("huber", {"rank": 3}, "D", 0.0146, 0.0156),
    ("huber", {"rank": 3}, "T2", 0.0149, 0.0159),
    ("huber", {"rank": 3}, "T4", 0, 1e-6),
    ("bcpf", {"max_rank": 10}, "A", 0.0082, 0.0088),
    ("bcpf", {"max_rank": 10}, "B", 0.124, 0.132),
    ("bcpf", {"max_rank": 10}, "C", 0.0118, 0.0136),
    ("bcpf", {"max_rank": 10}, "D", 0.0450, 0.0464),
    ("bcpf", {"max_rank": 10}, "T2", 0.254, 0.260),
]
QUICK = {("cp-als", "A"), ("cp-als", "B"), ("hosvd", "B"), ("cp-ard", "A"), ("cp-ard", "B"), ("tucker-ard", "A")} | {
    ("cpwopt", "C"),
    ("cpnls", "T0"),
    ("horpca", "B"),
    ("huber", "B"),
    ("bcpf", "C"),
}


def figures():
    """Every figure on three draws; one draw of a few of them is quick."""
    for name, params, letter, low, high in FIGURES:
        for seed in (1, 2, 3):
            quick = seed == 1 and (name, letter) in QUICK and "sparsity" not in params
            label = "-".join([name, letter, *map(str, params.values()), str(seed)])
            marks = [] if quick else [pytest.mark.slow]
            yield pytest.param(name, params, letter, low, high, seed, marks=marks, id=label)


class TestFigures:
    @pytest.mark.parametrize(("name", "params", "letter", "low", "high", "seed"), list(figures()))
    def test_error_is_what_it_was(self, name, params, letter, low, high, seed):
        data = known_problem(letter, seed)
        found = baselines.recover(name, data.observed, seed=seed, **params)
        # A draw's error varies by 5 % where noise decides it: by 1/√(2 · 264), of 264 free numbers.
        assert 0.85 * low <= rrse(found.low_rank, data.low_rank) <= 1.15 * high

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_ard_ranks(self, seed):
        ranks = {
            letter: baselines.recover("cp-ard", known_problem(letter, seed).observed, seed=seed) for letter in "ABG"
        }
        assert ranks["A"].rank in (3, 4)
        assert ranks["G"].rank in (5, 6)
        assert ranks["B"].rank in range(26, 31)
        # The true components are among the many.
        assert fme(ranks["B"].factors, known_problem("B", seed).factors) < 0.12
        ranks = {
            letter: baselines.recover("tucker-ard", known_problem(letter, seed).observed, max_ranks=10).rank
            for letter in "ABG"
        }
        assert ranks == {"A": (3, 3, 3), "B": (10, 10, 10), "G": (5, 5, 5)}

    def test_factors_match(self):
        for name, params, letter, low, high in [
            ("cp-als", {"rank": 3}, "A", 0.0065, 0.0073),
            ("cp-als", {"rank": 3}, "B", 0.088, 0.105),
            ("cpwopt", {"rank": 3, "n_starts": 1}, "C", 0.0093, 0.0108),
            ("cpwopt", {"rank": 3, "n_starts": 1}, "D", 0.035, 0.040),
        ]:
            data = known_problem(letter, 1)
            found = baselines.recover(name, data.observed, **params)
            assert 0.9 * low < fme(found.factors, data.factors) < 1.1 * high

    def test_both_least_squares_methods_find_the_same(self):
        data = known_problem("D", 1)
        first, second = (baselines.recover(name, data.observed, rank=3, n_starts=2) for name in ("cpwopt", "cpnls"))
        assert rrse(first.low_rank, second.low_rank) < 1e-4

    def test_least_squares_suffers_from_missing_entries_and_large_outliers(self):
        data = known_problem("T2", 1)
        found = baselines.recover("cpwopt", data.observed, rank=3, n_starts=1)
        assert rrse(found.low_rank, data.low_rank) > 0.25

    @pytest.mark.slow
    @pytest.mark.parametrize("letter", ["B", "D", "T2"])
    def test_huber_finds_the_rank_of_the_paper(self, letter):
        data = known_problem(letter, 1)
        found = baselines.recover("huber", data.observed, n_starts=2)
        assert found.rank == 3
        assert rrse(found.low_rank, data.low_rank) < 0.017

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_the_first_table_of_the_paper(self, seed):
        # Rank 50, 1 % outliers. Zhao et al. print 0.31, 0.56, 0.35 (rank 68) and 0.20; FME 0.29, 0.96, 0.20 and 0.96.
        data = brtf.datasets.paper_synthetic(outliers=0.01, rank=50, seed=seed)
        for name, params, error, match in [
            ("cp-als", {"rank": 50, "n_starts": 1}, (0.25, 0.33), (0.20, 0.28)),
            ("hosvd", {"ranks": 23}, (0.52, 0.58), (0.95, 0.98)),
            ("cp-ard", {"max_rank": 100}, (0.31, 0.42), (0.16, 0.22)),
            ("horpca", {"tol": 1e-4, "max_sweeps": 150}, (0.17, 0.21), (0.95, 0.98)),
        ]:
            found = baselines.recover(name, data.observed, seed=seed, **params)
            # Methods without components: their bases in place of factors, as the paper seems to have done.
            factors = found.factors or leading_bases(found.low_rank, [23 if name == "hosvd" else 30] * 3)
            assert error[0] < rrse(found.low_rank, data.low_rank) < error[1]
            assert match[0] < fme(factors, data.factors) < match[1]
            if name == "cp-ard":
                assert 60 < found.rank < 85
