"""The calibration: do the intervals contain held-out entries as often as they should?"""

from __future__ import annotations

from brtf.results.headline import percent
from brtf.view.report import charts
from brtf.view.report.blocks import Beside, Card, Facts, Part, Words
from brtf.view.report.subject import Subject
from brtf.view.report.svg import number
from brtf.view.view_data import calibration


def calibration_part(subject: Subject) -> Part:
    """Coverage of held-out entries, or how to hold some out."""
    title, held_out = "Calibration", subject.held_out
    if held_out is None:
        if not subject.has_entries:
            return Part("calibration", title)
        if subject.given:
            return Part("calibration", title, left_out=["Calibration. The fit has seen every entry of the given data."])
        reason = (
            'Calibration. No entry was held out: fit with calibrate="conformal", or pass data with held-out entries '
            "(brtf report --data)."
        )
        return Part("calibration", title, left_out=[reason])
    found, n_held_out = calibration(subject.result, held_out), held_out.n_observed
    covered = {f"{100 * level:g} %": percent(share) for level, share in zip(found.level, found.covered, strict=True)}
    compared = f"{found.n_entries:,}" + (f" of {n_held_out:,}" if n_held_out > found.n_entries else "")
    source = "of the given data that the fit has not seen" if subject.given else "set aside for calibration"
    about = f"{compared} entries {source}, compared with their predictions."
    if subject.result.held_back is not None:
        about += (
            " These are the model’s own intervals; predict_interval scales them so that they cover the calibration "
            "entries."
        )
    facts = [
        ("root mean square error", number(found.rmse)),
        ("mean error", number(found.mae)),
        ("log predictive density", f"{number(found.log_density)} nats per entry"),
        *((f"inside {level} intervals", covered[level]) for level in ("50 %", "80 %", "95 %")),
    ]
    caption = "On the dashed line the coverage equals the level; the grey band shows the variation expected by chance."
    chart = Card(charts.calibration_chart(found), caption)
    return Part("calibration", title, [Words(about), Beside(chart, [Facts(facts)])])
