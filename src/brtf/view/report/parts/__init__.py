"""The parts of the report page, in their order; a new part is one module and one line here."""

from __future__ import annotations

from collections.abc import Callable

from brtf.view.report.blocks import Part
from brtf.view.report.parts.calibration import calibration_part
from brtf.view.report.parts.components import components_part
from brtf.view.report.parts.course import choices_part, course_part, details_part
from brtf.view.report.parts.forecast import forecast_part
from brtf.view.report.parts.outliers import outliers_part
from brtf.view.report.parts.residuals import residuals_part
from brtf.view.report.parts.slices import slices_part
from brtf.view.report.parts.support import support_part
from brtf.view.report.subject import Subject

PARTS: tuple[Callable[[Subject], Part], ...] = (
    slices_part,
    components_part,
    forecast_part,
    outliers_part,
    residuals_part,
    calibration_part,
    support_part,
    choices_part,
    course_part,
    details_part,
)
