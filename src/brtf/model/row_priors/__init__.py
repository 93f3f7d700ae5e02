"""Priors p(A⁽ⁿ⁾ | λ) of a mode's rows, each with the posterior of its own parameters.

One file per prior; nothing outside this package depends on which prior a mode has. To add one, subclass
:class:`RowPrior`, or :class:`IndependentRows` for independent rows, and decorate it with :func:`register`: the search
then proposes it for every mode, and files can store it.
"""

from brtf.model.row_priors.centred import Centred, KnownCentre
from brtf.model.row_priors.in_order import InOrder
from brtf.model.row_priors.known_order import KnownOrder
from brtf.model.row_priors.non_negative import NonNegative
from brtf.model.row_priors.non_negative_order import NonNegativeOrder
from brtf.model.row_priors.ordered import Ordered
from brtf.model.row_priors.row_prior import ROW_PRIORS, IndependentRows, RowPrior, RowSolver, RowTerms, register
from brtf.model.row_priors.unequal import KnownUnequal, Unequal, UnequalCentred
from brtf.model.row_priors.zero_mean import ZeroMean

__all__ = [
    "ROW_PRIORS",
    "Centred",
    "InOrder",
    "IndependentRows",
    "KnownCentre",
    "KnownOrder",
    "KnownUnequal",
    "NonNegative",
    "NonNegativeOrder",
    "Ordered",
    "RowPrior",
    "RowSolver",
    "RowTerms",
    "Unequal",
    "UnequalCentred",
    "ZeroMean",
    "register",
]
