"""Sizes at which the work on a data set is divided, cached or sent."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_ENTRIES = 65536
"""Entries of a block: half a megabyte of float64, which fits into the cache of a core."""


@dataclass(frozen=True)
class Plan:
    """How the work on a data set is divided, and from which size it is done in another way.

    Results depend on blocks, runs, lanes and what is cached or sent only in their last digits.

    Attributes
    ----------
    block_entries : entries of a block
    small_data : largest number of entries for which a pass per mode costs little
    cached_data : largest number of entries for which results of blocks are cached: the points of a search hold up to
        ten numbers per entry then, some ten megabytes each.
    sketched_data : number of entries from which components are looked for in a sketch of the data
    raced_data : entries on which readings of the data race; larger data send a part
    weighted_rank : largest rank at which complete data are searched with weighted entries, form 2 of the bound
    run_bytes : largest size in bytes of a run of rows whose sums are added and finished together; long modes have
        several runs
    finished_bytes : the same of sums that are in memory already, which are only finished together: a part of the cache
        of a core
    partial_bytes, partial_share : bytes of partial contractions that may be kept, and their share of the values in
        memory if that is more
    sparse_sums : size from which a sum is checked for rows that are zero, which are not sent
    separate_bytes : size in bytes from which the posterior of the rows of a mode is sent separately and kept between
        passes
    message_bytes : size of a message in bytes from which a warning is given
    fewest_lanes : smallest number of lanes, if there are that many chunks
    cached_share : share of the memory of a process used for cached chunks
    free_share : share of the disk that cached chunks leave free
    """

    block_entries: int = BLOCK_ENTRIES
    small_data: int = 2**18
    cached_data: int = 2**20
    sketched_data: int = 2**18 + 1
    raced_data: int = 2**16
    weighted_rank: int = 16
    run_bytes: int = 2**26
    finished_bytes: int = 2**20
    partial_bytes: int = 2**25
    partial_share: float = 0.1
    sparse_sums: int = 2**16
    separate_bytes: int = 2**18
    message_bytes: int = 2**30
    fewest_lanes: int = 64
    cached_share: float = 0.25
    free_share: float = 0.1


DEFAULT_PLAN = Plan()
