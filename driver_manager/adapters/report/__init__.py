"""What people and their tools are shown: log, step list, metrics, termination log."""
