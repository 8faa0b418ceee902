"""The network: topologies, the routes of messages over them, and the most they can carry."""

import ringloom.simulator.network.boards  # noqa: F401  registers its kinds of topologies
