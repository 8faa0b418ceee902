"""Records real runs: the start and end of every operation of every rank."""
