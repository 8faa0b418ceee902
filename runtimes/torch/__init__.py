"""Runs emitted torch programs on ranks that are processes or members of a process group."""
