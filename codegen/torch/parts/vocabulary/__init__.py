"""The functions that printed PyTorch passes call, at least one for each op of the program IR."""
