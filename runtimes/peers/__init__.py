"""Wraps attention of other libraries as `attend(q, k, v)` on [batch, heads, tokens, head_dim]."""
