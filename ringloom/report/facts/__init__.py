"""Facts of plans, predictions and recorded runs, as columns of numbers."""
