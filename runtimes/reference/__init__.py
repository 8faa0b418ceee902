"""The reference: dense attention, and any plan on virtual ranks in numpy."""
