"""The functions that printed JAX passes call, one for each op of the program IR."""
