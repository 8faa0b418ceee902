"""Torch programs that run any plan by its tables, in the program or as an argument."""
