"""Schedules that cut heads: an all-to-all gives each rank every token of a few heads."""
