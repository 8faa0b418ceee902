"""Lowering: facts of a program that its loops give, found once for all targets."""
