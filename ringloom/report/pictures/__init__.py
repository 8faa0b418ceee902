"""Pictures of facts as bokeh figures, which `show` redraws."""
