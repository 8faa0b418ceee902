"""Recording real runs: what every rank did when, by the clock of this machine."""
