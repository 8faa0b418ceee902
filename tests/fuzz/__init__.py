"""Fuzzers of everything that reads what others wrote: `python -m fuzz`, or `make fuzz`.

A case is a valid document that a seeded generator has changed: its values, keys, types, numbers and
nesting, then the text and the bytes. A reader either refuses it in one plain line or accepts it,
and what is accepted obeys the law of that reader. No case takes more than two seconds of processor
time or 512 MiB.
"""
