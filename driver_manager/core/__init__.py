"""The programs' effects, on ports only: one package each for reconcile, the rebooter and health-watch."""
