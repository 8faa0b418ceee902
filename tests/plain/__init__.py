"""Tests of what runs neither torch nor JAX itself; a few start processes that do."""
