"""The registers and messages of the machine on which `check` runs a program for all ranks."""
