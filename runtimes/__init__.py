"""Runs plans and emitted programs: a numpy oracle, JAX meshes and torch processes."""
