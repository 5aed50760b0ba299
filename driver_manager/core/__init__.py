"""The programs' effects, on ports only: one room each for reconcile, the rebooter and health-watch."""
