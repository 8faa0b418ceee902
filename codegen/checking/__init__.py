"""The machine on which `check` runs a program for all ranks at once."""
