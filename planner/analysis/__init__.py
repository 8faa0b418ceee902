"""Analyses of plans: where blocks are and when, for the verifier, passes, costs and programs."""
