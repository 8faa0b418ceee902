"""Calibration: times the operations of attention on this machine."""
