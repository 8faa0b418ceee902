"""Questions and their answers: what a function attends, and how exact its results are.

questions    inputs of a call, and answers
slices       the questions of slices of queries and keys
screening    slices whose weights are not as expected
weights      weights of rows, and the multiplicities that they are in the ratio of
probing      weights of all pairs, from outputs and gradients
detecting    positions of local rows that are not given
levels       heads, the scale, and merging, from scores of a few levels
loud         scores beyond what exp can hold, and their gradients
samples      random inputs against dense attention
factors      what all numbers of a head have in common there
history      calls that must not depend on each other
variants     calls that differ from a sample, but not in their results
"""
