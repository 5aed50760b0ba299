"""The loop of health-watch."""
