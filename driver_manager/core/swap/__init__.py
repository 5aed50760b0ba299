"""reconcile-driver-state: observe, plan, execute, settle."""
