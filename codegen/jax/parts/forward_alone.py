"""The backward pass of a forward-only program, which raises an error."""

# ---- The function to call


def backward(*_):
    """Raise NotImplementedError, since this program has no backward pass."""
    reason = "this forward-only program has no gradients"
    raise NotImplementedError(reason)
