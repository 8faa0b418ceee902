"""Predictions of a plan on given hardware: its timeline, loads, memory and lower bounds."""

if __name__ != "ringloom.simulator":
    raise ImportError(f"import ringloom.simulator, not {__name__}")
