"""Commands that run plans, and check programs against dense attention."""
