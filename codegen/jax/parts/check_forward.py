"""The result that the self-check compares, of a program without a backward pass."""


def results(function, q, k, v, dout):
    """The output alone: there are no gradients."""
    return (function(q, k, v),)
