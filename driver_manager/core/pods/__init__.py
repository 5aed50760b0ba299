"""Pods that leave: waited for and evicted."""
