"""Costs: the seconds and bytes of attends, merges and messages."""

from simulator.costs.prices import Costs

__all__ = ["Costs"]
