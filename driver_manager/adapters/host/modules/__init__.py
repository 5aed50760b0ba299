"""Kernel modules: those that are loaded, and those that a driver root offers."""
