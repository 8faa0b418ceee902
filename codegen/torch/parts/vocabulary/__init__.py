"""The functions that printed torch passes call, one for each op of the program IR."""
