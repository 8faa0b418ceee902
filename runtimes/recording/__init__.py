"""Recording real runs: start and end of every operation of every rank."""
