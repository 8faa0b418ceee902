"""Tests that run JAX."""
