"""Functions that are asked, on ranks of a framework, and what happens to these ranks.

asking       what asking has in common in every framework
on_torch     a torch function on every rank of a group
on_jax       a JAX function of global arrays
traffic      bytes that a torch function sends
launching    ranks that are started here, and end in any case
watching     where each of them is, and what it waits for
"""
