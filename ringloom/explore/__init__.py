"""A local page to play with: choices, the same pictures as the report's, redrawn at once.

choices.py   what a reader chose, to and from an address
view.py      the pictures of one study
session.py   one reader: controls, pictures, downloads
"""
