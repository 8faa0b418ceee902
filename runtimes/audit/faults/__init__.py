"""Locates and classifies faults in the weights that probing showed.

suspects    lists masks that are often computed by mistake
shapes      classifies a fault by the shape of its wrong pairs
verdicts    turns wrong weights into faults
"""
