"""Rollouts over a fleet of nodes: which node starts next, and why the others wait."""
