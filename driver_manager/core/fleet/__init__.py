"""The controller of rollouts: facts in, one decision, acts out."""
