"""Engines: when every row of a plan runs, by a recurrence or by events."""
