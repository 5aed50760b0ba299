"""The steps that a plan can be made of, by family."""
