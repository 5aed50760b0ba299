"""The exit statuses that a tool's run has where the tool itself did not end with one. Pure."""

TIMED_OUT = 124
NO_TOOL = (126, 127)
"""What a shell says for a command that cannot be run, or is not there (sh(1)); a failed exec ends so too."""
