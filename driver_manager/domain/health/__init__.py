"""Samples of a probe, the states that they lead to, and the metrics of health-watch."""
