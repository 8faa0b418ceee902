"""Blocks that go from rank to rank, each time to a neighbour on some ring."""
