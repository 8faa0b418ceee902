"""Runs emitted torch programs on new processes or on the ranks of a process group."""
