"""The network: topologies, the routes of messages over them, and the most they can carry."""
