"""The fleet: which node of a rollout goes next, and why the others wait. Pure."""
