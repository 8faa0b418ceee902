"""The order of tokens that an exchange brings, and sums that several devices have."""


def transposed(x, outer, inner):
    """Tokens of outer x inner pieces, as inner x outer ones."""
    batch, heads, _, width = x.shape
    return x.reshape(batch, heads, outer, inner, -1, width).swapaxes(2, 3).reshape(x.shape)


def in_order(x, places):
    """Pieces of the tokens in the order in which `places` lists them."""
    batch, heads, _, width = x.shape
    return x.reshape(batch, heads, len(places), -1, width)[:, :, places].reshape(x.shape)


def sum_of_copies(x, copies):
    """The sums of each head of which several devices had a copy."""
    return x.reshape(len(x), -1, copies, *x.shape[2:]).sum(2)
