"""Generated data that look like what people bring, by name."""

from __future__ import annotations

from collections.abc import Callable

import lookalike_fields as fields
import lookalike_series as series
from lookalike_parts import Lookalike

GENERATORS: dict[str, Callable[..., Lookalike]] = {
    "trips": series.trips,
    "network": series.network,
    "sea": series.sea,
    "spectra": fields.spectra,
    "sensors": series.sensors,
    "sales": series.sales,
    "bursts": series.bursts,
    "parks": series.parks,
    "metro": series.metro,
    "households": series.households,
    "air": series.air,
    "climate": series.climate,
    "mixtures": fields.mixtures,
    "faces": fields.faces,
    "trees": fields.trees,
    "genes": fields.genes,
    "bands": fields.bands,
    "ratings": fields.ratings,
}
