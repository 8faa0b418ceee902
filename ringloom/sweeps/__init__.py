"""Sweeps: every combination of workloads, hardware, schedules and scenarios, resumable."""
