"""Prometheus servers, as they are asked."""
