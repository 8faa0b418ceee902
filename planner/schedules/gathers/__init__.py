"""Schedules in which a rank sends a block to many ranks in one step."""
