"""Runs plans and emitted programs in numpy, on JAX meshes and on torch ranks."""

if __name__ != "ringloom.runtimes":
    raise ImportError(f"import ringloom.runtimes, not {__name__}")
