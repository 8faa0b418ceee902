"""What a terminal shows: numbers with units, grids, tables."""
