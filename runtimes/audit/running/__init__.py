"""Calls the audited function on ranks, and watches these ranks.

asking       has the parts that all frameworks share
on_torch     asks a torch function on every rank of a group
on_jax       asks a JAX function of global arrays
traffic      counts the bytes that a torch function sends
launching    starts ranks, and ends them in any case
watching     reports where each rank is, and where it waits
"""
