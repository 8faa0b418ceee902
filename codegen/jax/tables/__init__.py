"""Table programs in JAX: their tables, embedded or passed in, beside one short interpreter."""
