"""Formulas: what schedules cost in symbols, and what plans count in the same units."""
