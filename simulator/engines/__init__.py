"""Engines that time every row of a plan, by a recurrence or by events."""
