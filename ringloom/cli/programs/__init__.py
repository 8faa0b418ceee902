"""Commands that write programs and their tables."""
