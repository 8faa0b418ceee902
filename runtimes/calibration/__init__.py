"""Calibration: timing on this machine what predictions are made of."""
