"""Commands that plan, predict and compare schedules."""
