"""Schedules for few queries against a long KV cache, which does not move."""
