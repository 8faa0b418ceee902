"""Kernel calls: which calls an attend becomes, and what each costs."""
