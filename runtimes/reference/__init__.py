"""Computes dense attention, and runs any plan on virtual ranks, in numpy."""
