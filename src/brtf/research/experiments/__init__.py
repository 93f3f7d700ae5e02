"""The experiments of the paper, one file each: plan → measure → render.

``plan(quick, seed, inputs)`` lists what to measure as cases of plain settings; ``measure(settings, inputs)`` does one
of them and returns its numbers; ``render(rows, store)`` makes the section of the page, and ``losses(rows)`` lists where
ours is not the best. ``runs`` keeps the rows in plain files, so that a run can stop and go on; ``page`` puts the
sections together. ``brtf reproduce`` is the way in.
"""

EXPERIMENTS = ("fig2", "fig3", "table1", "table2", "video", "faces")
"""Every experiment, by the name of its module, in the order of the paper."""
