"""Schedules in which blocks travel from neighbour to neighbour on rings of ranks."""
