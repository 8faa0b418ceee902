"""Ranks of these tests are forked by one server."""

from rank_server import forked as forked
