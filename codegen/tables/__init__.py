"""Plans as tables for programs that run them step by step.

runs      the positions of a block, and the rows in which they lie
steps     what each rank sends, receives and attends in each step, kernel calls included
"""
