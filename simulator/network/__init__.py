"""The network: topologies, the routes of messages, and the ports of ranks."""

import ringloom.simulator.network.boards  # noqa: F401  registers two kinds of topologies
