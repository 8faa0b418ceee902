"""The functions called by emitted torch passes, one for each op of the program IR."""
