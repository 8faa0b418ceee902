"""Numbers that the pictures show: tiles and messages of plans, and recorded runs."""
