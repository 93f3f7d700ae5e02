"""Searches that are resumed at any moment end at the digits at which they would have ended."""

import json
from dataclasses import replace

import numpy as np
import pytest

import brtf
from brtf.data.observe import observe
from brtf.io.archived_position import pack_position, unpack_position
from brtf.model.settings import Settings
from brtf.search.run import run

N_RESUMED = 7
"""Moments of a search at which it is resumed."""


def data(*, rank=3, missing=0.0):
    return np.array(brtf.datasets.synthetic((24, 9, 8), rank, outliers=0.03, missing=missing, seed=4).observed)


def in_chunks(tensor, tmp_path):
    zarr = pytest.importorskip("zarr")
    options = {"fill_value": np.nan, "compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]}
    store = zarr.create_array(f"{tmp_path / 'y.zarr'}", shape=tensor.shape, chunks=(6, 9, 8), dtype="f8", **options)
    store[:] = tensor
    return brtf.Observations.from_chunks(store)


def written(moment, observations):
    """The moment with its position as a file has it."""
    header, arrays = {}, {}
    if moment.position is None:
        return moment
    pack_position(moment.position, header, arrays)
    return replace(
        moment, position=unpack_position(json.loads(json.dumps(header, allow_nan=False)), arrays, observations)
    )


def is_measured(position):
    """Whether the component beyond the cap is on trial."""
    return position is not None and position.proposal is not None and position.proposal.worth == np.inf


def digits(outcome):
    return [record.bound for record in outcome.trace], [rows.mean.tobytes() for rows in outcome.state.factors]


@pytest.mark.parametrize(
    ("chunked", "missing", "options"),
    [
        (False, 0.0, {}),
        (False, 0.3, {}),
        (True, 0.0, {}),  # the next factors come from the same pass as the present bound
        (True, 0.3, {}),
        (False, 0.3, {"max_rank": 2}),  # and one more component is measured at the end
    ],
    ids=str,
)
def test_resumed_at_any_moment_to_the_same_digits(chunked, missing, options, tmp_path):
    tensor = data(missing=missing)
    observations = in_chunks(tensor, tmp_path) if chunked else observe(tensor, None)
    settings = Settings(noise="common", link=None, arrangement=None, **options)
    moments = []

    def watch(moment):
        moments.append(replace(moment, records=moment.trace, rng=dict(moment.rng)))

    whole = run(observations, settings, np.random.default_rng(0), watch)
    assert ("max_rank" in options) is (whole.cap_gain is not None)
    measured = [moment for moment in moments if is_measured(moment.position)]
    assert ("max_rank" in options) is bool(measured)
    for moment in [*moments[-1 :: -len(moments) // N_RESUMED], *measured[:1]]:
        resumed = run(observations, settings, np.random.default_rng(1), since=written(moment, observations))
        assert digits(resumed) == digits(whole)
        assert resumed.cap_gain == whole.cap_gain
