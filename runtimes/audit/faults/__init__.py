"""Faults of what was seen: where they show first, and their kinds.

suspects    masks that somebody may have meant
shapes      kinds by the shape of wrong pairs
verdicts    what is wrong with weights, and where it shows first
"""
