"""Few queries against keys and values that stay where they are."""
