"""Emitted torch programs on ranks that are threads of one process."""
