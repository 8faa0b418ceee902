"""The report: facts of a comparison as plain numbers, pictures of them, and one page.

facts      legs.py  tiles.py  messages.py  spans.py  loads.py     numpy only
           names.py  lists.py  recorded.py  matching.py
pictures   timeline.py  stepper.py  heat.py  memory.py  frames.py  facts -> bokeh
page       summary.py  page.py  page/                              pictures -> one HTML file
"""
