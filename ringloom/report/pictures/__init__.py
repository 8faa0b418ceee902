"""Pictures as Bokeh figures, which `show` redraws."""
