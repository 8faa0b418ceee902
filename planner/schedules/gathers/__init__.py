"""Schedules that send a block from one rank to many ranks at once."""
