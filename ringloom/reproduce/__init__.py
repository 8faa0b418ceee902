"""Each paper's tables and claims beside ours, row by row, with the error of every row."""
