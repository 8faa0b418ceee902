"""Output for a terminal: numbers with units, grids, tables."""
