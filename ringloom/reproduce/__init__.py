"""Compares published tables and claims with our predictions, with the error of every row.

papers/    a module per paper: its tables and published times
models/    analytic models of transformers, training iterations and the papers' baselines
formulas/  costs of schedules as formulas, interpolated from plans
"""

from pathlib import Path

DATA = Path(__file__).parent / "data"  # published numbers
