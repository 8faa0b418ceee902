"""Computes dense attention and runs plans on virtual ranks, both in numpy."""
