"""Each paper's tables and claims beside ours, row by row, with the error of every row.

papers/    a module per paper: its tables, and the times that it publishes
models/    transformers, training iterations, the papers' baselines
formulas/  costs of schedules in symbols, and the same counted in plans
"""

from pathlib import Path

DATA = Path(__file__).parent / "data"  # the published numbers
