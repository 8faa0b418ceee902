"""Runs emitted JAX programs on a mesh of devices, which on a CPU are virtual."""
