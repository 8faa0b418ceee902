"""What a plan would do on given hardware: its timeline, loads, memory and lower bounds."""
