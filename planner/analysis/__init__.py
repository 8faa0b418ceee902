"""Analyses: what is where and when in a plan; the verifier, passes, costs and programs ask them."""
