"""Attention of other libraries, called as `attend(q, k, v)` on [batch, heads, tokens, head_dim]."""
