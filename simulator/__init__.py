"""Predictions of a plan on given hardware: its timeline, loads, memory and lower bounds."""
