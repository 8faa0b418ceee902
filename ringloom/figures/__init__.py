"""Figures for print, drawn by matplotlib from plans: the same bytes on every run."""
