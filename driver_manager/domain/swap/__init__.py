"""The decisions of a reconcile: the plan, its steps, its preflight and the patches it makes of facts."""
