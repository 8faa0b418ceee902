"""Pictures of facts, as bokeh figures that can be redrawn."""
