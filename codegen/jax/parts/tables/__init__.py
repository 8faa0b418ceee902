"""Parts of table programs: the interpreter, blocks of all heads or of some, tables as arguments."""
