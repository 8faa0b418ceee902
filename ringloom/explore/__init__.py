"""A local page to play with: choices, the same pictures as the report's, redrawn at once.

choices.py   what a reader chose, to and from an address, as a command and as Python
controls.py  the same as entries of the page, and as files
view.py      the pictures of one study
answers.py   answers in stages, left at the next change; all other schedules, row by row
session.py   one reader: controls, pictures, table
gate.py      requests that are the page's own, which alone pass
"""
