"""A fit in a notebook: the findings in plain words, the strengths of the components, and the summary."""

from __future__ import annotations

from html import escape

import numpy as np

from brtf.results.headline import headline
from brtf.results.result import Result
from brtf.results.summary import Summary, fitted_to

MOST_BARS = 8
STYLE = """<style>
.brtf-fit { max-width: 46rem; padding: .7rem .9rem; border: 1px solid rgba(128, 128, 128, .35); border-radius: 6px; }
.brtf-fit p { margin: 0 0 .25rem; font-size: 1.05em; line-height: 1.4; }
.brtf-fit .doubt { color: #b3261e; }
.brtf-fit .bars { display: grid; grid-template-columns: auto 1fr auto; gap: .15rem .6rem; margin: .6rem 0; }
.brtf-fit .bars i { display: block; height: .8em; margin-top: .25em; background: #1f6fb8; border-radius: 2px; }
.brtf-fit summary { cursor: pointer; opacity: .75; }
.brtf-fit table { margin: .3rem 0 0; font-size: .9em; }
.brtf-fit th, .brtf-fit td { text-align: left !important; vertical-align: top; }
</style>"""


def card(result: Result) -> str:
    """The fit as a piece of HTML that follows the colours of the notebook; all text is escaped."""
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in headline(result))
    doubts = "".join(
        f'<p class="doubt"><b>{escape(doubt.sentence)}</b> {escape(doubt.remedy)}</p>' for doubt in result.diagnosis
    )
    return (
        f'<div class="brtf-fit">{STYLE}{sentences}{doubts}{_bars(result)}'
        f"<details><summary>Summary</summary>{Summary.of(result)._repr_html_()}</details></div>"
    )


def _bars(result: Result) -> str:
    if result.rank == 0:
        return ""
    strengths = result.strengths
    order = np.argsort(-strengths, kind="stable")
    rows = "".join(
        f'<span>component {k}</span><span><i style="width: {share:.1f}%"></i></span><span>{strengths[k]:.3g}</span>'
        for k in order[:MOST_BARS]
        for share in [100 * strengths[k] / (strengths.max() or 1.0)]
    )
    more = f"<p>and {result.rank - MOST_BARS} weaker components</p>" if result.rank > MOST_BARS else ""
    units = escape(fitted_to(result.link.name))
    return f'<div class="bars" title="root mean square, in the units of {units}">{rows}</div>{more}'
