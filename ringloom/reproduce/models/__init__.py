"""Analytic models of transformers, their training, and the baselines of the papers."""
