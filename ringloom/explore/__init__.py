"""A local page with controls, which redraws the report's pictures after every change.

choices.py   values of the controls, as a URL, a command and Python code
controls.py  labels and options of the controls, and files for download
view.py      the pictures of the chosen plan
answers.py   answers in stages, which a new change cancels; the table of schedules, row by row
session.py   an open page: controls, pictures, table
gate.py      accepts only requests of the server's own page
"""
