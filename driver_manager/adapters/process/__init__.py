"""Processes, time and signals: tools that are run, loops that wait, who is alive."""
