"""Asks a function questions that show its attention weights and the accuracy of its results.

questions    describes the inputs of a call, and answers
slices       builds questions for slices of queries and keys
screening    determines the slices with unexpected weights
weights      stores weights, and counts multiplicities
probing      determines the weights of all pairs from outputs and gradients
detecting    determines the positions of local rows if they are unknown
levels       checks heads, the scale and merging with a few different scores
loud         checks scores at which exp overflows, and their gradients
samples      compares results on random inputs with dense attention
factors      estimates a common factor of a head's results
history      checks that calls do not depend on each other
variants     checks calls that must give the same results as a sample
"""
