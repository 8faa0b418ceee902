"""Calls the audited function on ranks, and watches these ranks.

asking       contains the parts that all frameworks share
on_torch     asks a torch function on every rank of a group
on_jax       asks a JAX function of global arrays
traffic      counts the bytes that a torch function sends
launching    starts ranks, and always ends them
watching     reports where each rank waits
"""
