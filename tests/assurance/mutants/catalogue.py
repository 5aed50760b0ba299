"""All mutants, by name."""

from __future__ import annotations

from tests.assurance.mutants.clear_mutants import CLEAR_MUTANTS
from tests.assurance.mutants.client_mutants import CLIENT_MUTANTS
from tests.assurance.mutants.driver_mutants import DRIVER_MUTANTS
from tests.assurance.mutants.fleet_control_mutants import FLEET_CONTROL_MUTANTS
from tests.assurance.mutants.fleet_metrics_mutants import FLEET_METRICS_MUTANTS
from tests.assurance.mutants.fleet_mutants import FLEET_MUTANTS
from tests.assurance.mutants.fleet_object_mutants import FLEET_OBJECT_MUTANTS
from tests.assurance.mutants.fleet_pods_mutants import FLEET_PODS_MUTANTS
from tests.assurance.mutants.fleet_verbs_mutants import FLEET_VERBS_MUTANTS
from tests.assurance.mutants.form_mutants import FORM_MUTANTS
from tests.assurance.mutants.host_mutants import HOST_MUTANTS
from tests.assurance.mutants.kernel_mutants import KERNEL_MUTANTS
from tests.assurance.mutants.mutant import Mutant
from tests.assurance.mutants.node_mutants import NODE_MUTANTS
from tests.assurance.mutants.patience_mutants import PATIENCE_MUTANTS
from tests.assurance.mutants.profile_mutants import PROFILE_MUTANTS
from tests.assurance.mutants.sandbox_mutants import SANDBOX_MUTANTS
from tests.assurance.mutants.shipped_mutants import SHIPPED_MUTANTS
from tests.assurance.mutants.staged_mutants import STAGED_MUTANTS
from tests.assurance.mutants.state_mutants import STATE_MUTANTS
from tests.assurance.mutants.vfio_mutants import VFIO_MUTANTS
from tests.assurance.mutants.watch_mutants import WATCH_MUTANTS
from tests.assurance.mutants.window_mutants import WINDOW_MUTANTS

_EVERY = (
    *NODE_MUTANTS,
    *PATIENCE_MUTANTS,
    *HOST_MUTANTS,
    *DRIVER_MUTANTS,
    *SHIPPED_MUTANTS,
    *KERNEL_MUTANTS,
    *VFIO_MUTANTS,
    *WATCH_MUTANTS,
    *WINDOW_MUTANTS,
    *STATE_MUTANTS,
    *FORM_MUTANTS,
    *FLEET_CONTROL_MUTANTS,
    *FLEET_VERBS_MUTANTS,
    *FLEET_MUTANTS,
    *FLEET_OBJECT_MUTANTS,
    *SANDBOX_MUTANTS,
    *FLEET_METRICS_MUTANTS,
    *FLEET_PODS_MUTANTS,
    *CLEAR_MUTANTS,
    *CLIENT_MUTANTS,
    *STAGED_MUTANTS,
    *PROFILE_MUTANTS,
)
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in _EVERY}
assert len(MUTANTS) == len(_EVERY), "two mutants have one name"
