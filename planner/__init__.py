"""Plans for distributed attention: IR, masks, partitions, schedules, passes, verifier, search."""
