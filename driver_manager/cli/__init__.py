"""The command line: click commands, rendering, exit codes; the only place that wires adapters to the core."""
