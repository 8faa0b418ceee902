"""Head-sharded schedules: an all-to-all gives each rank all tokens of a few heads."""
