"""The rebooter's loop."""
