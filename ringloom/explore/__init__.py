"""A local page with controls that redraws the report's pictures at every change.

choices.py   values of the controls, to and from a URL, as a command and as Python
controls.py  labels and options of the controls, and files to download
view.py      the pictures of the chosen plan
answers.py   answers in stages, dropped at the next change; the table of all schedules, row by row
session.py   one open page: controls, pictures, table
gate.py      accepts requests of the page itself only
"""
