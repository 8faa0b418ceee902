"""Runs plans and emitted programs: a numpy oracle, JAX meshes and torch processes."""

if __name__ != "ringloom.runtimes":
    raise ImportError(f"import ringloom.runtimes, not {__name__}")
