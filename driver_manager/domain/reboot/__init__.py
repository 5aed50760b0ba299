"""The rebooter's decisions and records."""
