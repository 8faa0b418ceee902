"""Links: topologies, the ways of messages over them, and the most they can carry."""
