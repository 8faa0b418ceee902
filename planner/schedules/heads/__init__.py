"""Schedules that shard heads: an all-to-all gives each rank all tokens of a few heads."""
