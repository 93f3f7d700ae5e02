"""The experiments of the paper, one file each: plan → measure → render.

``plan(quick, seed, inputs)`` lists the cases to measure; ``measure(settings, inputs)``, there or in ``synthetic``, runs
one of them and returns its numbers; ``render(rows, store)`` makes the section of the page, and ``losses(rows)`` lists
where BRTF is not the best.
``runs`` stores the rows in plain files, so that a run can be stopped and continued; ``page`` assembles the sections.
``brtf reproduce`` is the entry point.
"""

EXPERIMENTS = ("fig2", "fig3", "table1", "table2", "video", "faces")
"""Every experiment, by the name of its module, in the order of the paper."""
