"""The outside: implementations of the ports. Nothing here decides anything; errors are translated to domain errors."""
