"""Plans for distributed attention: IR, masks, partitions, layouts, schedules, passes, verifier."""
