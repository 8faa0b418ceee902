"""Analyses of plans for the verifier, passes, costs and programs: lifetimes, messages, tiles."""
