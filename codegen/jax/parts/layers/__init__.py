"""Parts of programs with a decoder layer."""
