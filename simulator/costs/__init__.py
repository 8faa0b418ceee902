"""Costs: the seconds of attends, merges and messages on some hardware."""
