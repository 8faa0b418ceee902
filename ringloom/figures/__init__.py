"""Figures of plans for print, drawn by matplotlib; every run writes the same bytes."""
