"""The progress bar says what the fit is doing, how good it is so far, and how long it may still take."""

import io
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import tqdm.auto

import brtf
from brtf.api.progress import progress_bar
from brtf.inference.trace import Record
from brtf.search.phases import NAMES


class Terminal(io.StringIO):
    """A wide terminal that keeps what was written to it."""

    encoding = "utf-8"

    def isatty(self):
        return True

    def lines(self):
        return [line.strip() for line in re.split(r"[\r\n]+", self.getvalue()) if line.strip()]


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, to which the bar writes whatever it is shown, however fast that is."""
    terminal = Terminal()

    class Bar(tqdm.auto.tqdm):
        def __init__(self, **options):
            super().__init__(file=terminal, ncols=200, mininterval=0.0, **options)

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    return terminal


def record(sweep, bound=-1234.5678, rank=3):
    return Record(sweep, bound, rank, 1.0)


def at(phase):
    return SimpleNamespace(phase=phase)


def filled(line):
    """Share of the bar that is filled, to a character."""
    bar = line.split("|")[1]
    return 1 - bar.count(" ") / len(bar)


def test_the_phase_and_what_is_found_so_far(terminal):
    with progress_bar("", 500, None) as show:
        show(0, None, at(0))
        show(45, record(45), at(2))
        told = terminal.lines()
    assert told[1].startswith(f"phase 1/{len(NAMES)}, start: 0 sweeps |")
    assert told[2].startswith(f"phase 3/{len(NAMES)}, rough: 45 sweeps, bound=-1234.57, rank=3 |")
    assert filled(told[2]) == pytest.approx(2 / len(NAMES), abs=0.01)
    assert "left" not in "".join(told)
    assert filled(terminal.lines()[-1]) == 1.0  # the end


def test_the_search_may_go_back_to_an_earlier_phase(terminal):
    with progress_bar("", 500, None) as show:
        show(60, record(60), at(5))
        show(61, record(61), at(4))
        shares = [filled(line) for line in terminal.lines()]
    assert shares[1:] == pytest.approx([5 / len(NAMES), 4 / len(NAMES)], abs=0.01)


def test_the_time_left_where_it_is_limited(terminal):
    times = iter([100.0, 100.0, 130.0, 160.0, 250.0])
    with progress_bar("", 500, 120.0, clock=lambda: next(times)) as show:
        for k in range(4):
            show(k, record(k), at(2))
    told = terminal.lines()[1:]
    assert [re.search(r"at most (\S+) left", line)[1] for line in told[:4]] == ["02:00", "01:30", "01:00", "00:00"]
    assert [filled(line) for line in told[:4]] == pytest.approx([0.0, 0.25, 0.5, 1.0], abs=0.01)


def test_sweeps_out_of_the_most_where_there_are_no_phases(terminal):
    with progress_bar("the dashboard", 8, None) as show:
        show(2, record(2))
    assert terminal.lines()[1].startswith("the dashboard  2/8 sweeps, bound=-1234.57, rank=3 |")
    assert filled(terminal.lines()[1]) == pytest.approx(0.25, abs=0.01)


def test_nothing_is_shown_unless_asked_for(terminal):
    with progress_bar(None, 500, 10.0) as show:
        show(1, record(1), at(1))
    assert terminal.getvalue() == ""


def test_an_error_leaves_the_bar_where_it_was(terminal):
    with pytest.raises(KeyboardInterrupt), progress_bar("", 500, None) as show:
        show(1, record(1), at(4))
        raise KeyboardInterrupt
    assert filled(terminal.lines()[-1]) == pytest.approx(4 / len(NAMES), abs=0.01)


def test_a_fit_tells_of_its_trials_and_of_every_phase_it_enters(terminal):
    data = np.abs(brtf.datasets.paper_synthetic(seed=1).observed) + 1.0  # positive: links are tried
    model = brtf.BRTF(random_state=0, progress=True).fit(data)
    told = terminal.lines()
    assert any(line.startswith("trials of links and arrangements: ") for line in told)
    phases = [int(found[1]) for line in told if (found := re.match(rf"phase (\d+)/{len(NAMES)}, ", line))]
    assert set(phases) >= {NAMES.index(name) + 1 for name in ("fine", "end")}
    assert int(re.search(r": (\d+) sweeps, ", told[-1])[1]) >= model.n_sweeps_  # the last records none if dropped
    assert f"rank={model.rank_} |" in told[-1]


def test_the_paper_s_inference_counts_sweeps(terminal):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        brtf.BRTF(inference="paper", max_sweeps=3, progress=True).fit(brtf.datasets.paper_synthetic().observed)
    assert terminal.lines()[-1].startswith("3/3 sweeps, bound=")


def test_an_input_that_is_refused_shows_no_bar(terminal):
    with pytest.raises(ValueError, match="holds back"):
        brtf.BRTF(calibrate="conformal", progress=True).fit(np.eye(3))
    assert terminal.getvalue() == ""
