"""Parts of table programs: the interpreter, its arrays, and tables as an argument."""
