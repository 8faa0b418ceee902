"""Costs of schedules as formulas, and counts of plans in the same units."""
