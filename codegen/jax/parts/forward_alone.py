"""A program without a backward pass: it has no gradients."""

# ---- The function to call


def backward(*_):
    """Raise NotImplementedError for gradients."""
    reason = "a program without a backward plan has no gradients"
    raise NotImplementedError(reason)
