"""All ranks at once, as the check runs a program on them."""
