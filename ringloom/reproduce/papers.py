"""The papers whose numbers are reproduced, and their tables as plain values."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ringloom.reproduce import burst, charts, distflash, ring, striped
from ringloom.reproduce.fitting import Fit
from ringloom.reproduce.striped_time import CONSTANTS
from ringloom.reproduce.tables import Table

PAPERS: Mapping[str, Callable[[], list[Table]]] = {
    "striped": lambda: striped.tables(striped.judged()),
    "ring": ring.tables,
    "distflash": distflash.tables,
    "burst": burst.tables,
    "charts": charts.tables,
}


def as_documents(tables: list[Table]) -> list[dict[str, Any]]:
    """Tables as plain values for JSON."""
    return [
        {
            "title": table.title,
            "rows": [line.as_dict() for line in table.lines],
            "summary": asdict(table.summary),
            "note": table.note,
        }
        for table in tables
    ]


def fit_document(fit: Fit) -> dict[str, float]:
    """A fit as plain values for JSON."""
    values = {k: v for k, v in asdict(fit).items() if not isinstance(v, np.ndarray)}
    return dict(zip(CONSTANTS, fit.constants.tolist(), strict=True)) | values
