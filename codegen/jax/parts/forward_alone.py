"""The backward pass of a forward-only program: an error."""

# ---- The function to call


def backward(*_):
    """Raise NotImplementedError for gradients."""
    reason = "this forward-only program has no gradients"
    raise NotImplementedError(reason)
