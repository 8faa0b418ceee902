"""Tests that run torch."""
