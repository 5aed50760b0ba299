"""Node-local driver manager for accelerators on Kubernetes."""
