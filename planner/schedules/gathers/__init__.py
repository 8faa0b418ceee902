"""Blocks that go from one rank to many at once."""
