"""Times the operations of attention on this machine, for calibration."""
