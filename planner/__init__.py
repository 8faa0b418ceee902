"""Plans for distributed attention: IR, masks, partitions, layouts, schedules, passes, verifier."""

if __name__ != "ringloom.planner":
    raise ImportError(f"import ringloom.planner, not {__name__}")
