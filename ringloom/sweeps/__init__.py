"""Simulates every combination of workloads, hardware, schedules and scenarios, resumably."""
