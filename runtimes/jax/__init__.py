"""Runs emitted JAX programs on a mesh of devices, virtual ones on a CPU."""
