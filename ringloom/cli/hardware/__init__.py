"""Commands for hardware files."""
