"""The numbers that the paper prints, and what it claims of the figures, whose curves it prints no numbers for.

Zhao, Zhou, Zhang, Cichocki & Amari, "Bayesian robust tensor factorization for incomplete multiway data".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One method's column of a table; None where nothing is printed."""

    seconds: float
    rank: str | None = None
    rrse: float | None = None
    fme: float | None = None
    sensitivity: float | None = None
    psnr: float | None = None
    seconds_sd: float | None = None


TABLE1 = {
    "brtf": Published(3, "50 (Auto)", 0.04, 0.02, None),
    "horpca": Published(10, None, 0.20, 0.96, 0.32),
    "cp-als": Published(31, "48", 0.31, 0.29, 0.20),
    "hosvd": Published(5, "(23,23,23)", 0.56, 0.96, 0.14),
    "cp-ard": Published(4, "68 (Auto)", 0.35, 0.20, None),
}
TABLE2 = {
    "brtf": Published(2, seconds_sd=0.4),
    "horpca": Published(26, seconds_sd=13),
    "cpwopt": Published(26, seconds_sd=8),
    "cpnls": Published(91, seconds_sd=10),
    "mgpcp": Published(68, seconds_sd=34),
}
TABLE3 = {
    "brtf": Published(234, "297", 0.0892, psnr=29.38),
    "horpca": Published(1089, None, 0.1040, psnr=28.05),
    "cp-als": Published(76, None, 0.2551, psnr=20.25),
    "tucker-ard": Published(4528, "[9, 29, 4, 9]", 0.2223, psnr=21.45),
    "hosvd": Published(0.7, None, 0.2109, psnr=21.91),
}
