"""What a reconcile decides: the plan, its steps, its preflight and the patches it makes of facts. Pure."""
