"""Plans as tables for programs that run them step by step.

steps     what each rank sends, receives and attends in each step, kernel calls included
"""
