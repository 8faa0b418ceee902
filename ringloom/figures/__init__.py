"""Figures for print, drawn by matplotlib from plans; every run writes the same bytes."""
