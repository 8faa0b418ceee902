"""codegen.jax   prints plans as JAX programs."""
