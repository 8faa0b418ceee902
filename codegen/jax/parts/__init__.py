"""Parts of emitted JAX programs: real modules, taken over definition by definition."""
