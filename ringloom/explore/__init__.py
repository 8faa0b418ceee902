"""A local page to play with: choices, the same pictures as the report's, redrawn at once.

choices.py   what a reader chose, to and from an address; what is wrong with which choice
controls.py  the same as entries of the page
view.py      the pictures of one study
table.py     all other schedules beside it, row by row
turns.py     answers in stages, one at a time, left at the next change
copies.py    the choices as a command and as Python; downloads.py  as files
session.py   one reader: controls, pictures, table
"""
