"""The embedded sandbox: an API server, a host tree with stand-in tools, scenarios that run the real command."""
