"""The report: facts of a comparison as plain numbers, pictures of them, and one page.

facts/              tiles, messages, spans, loads ...    numpy only
pictures/           timeline, stepper, load, traffic, memory          facts -> bokeh
summary.py page.py  templates and scripts in page/                    pictures -> one HTML file
"""
