"""Parts of emitted JAX programs: real modules whose definitions are copied as needed."""
