"""What `reconcile-vfio-state` and the commands with `--mode vfio` want, from their options.

The drop-in environment is that of the vfio-manager pods' init containers: without a digest, and with nobody to load.
"""

from __future__ import annotations

import click

from driver_manager import settings
from driver_manager.cli.wiring import policy, selector, workload_rules
from driver_manager.domain.policy import Loader, Mode, Policy
from driver_manager.domain.setting import Values

MANAGER = "manager"

mode_option = click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.CONTAINER.value,
    show_default=True,
    help="Containers or virtual machines (vfio).",
)


def policy_for(values: Values, mode: Mode) -> Policy:
    """The policy in the options for a node whose devices are to serve `mode`. Raises ConfigError for a bad selector."""
    return vfio_policy(values) if mode is Mode.VFIO else policy(values)


def vfio_policy(values: Values) -> Policy:
    """The policy in the options. Raises ConfigError for a bad selector."""
    by_kmm = values[settings.DRIVER_LOAD] == Loader.KMM.value
    return Policy(
        mode=Mode.VFIO,
        loader=Loader.KMM if by_kmm else Loader.CONTAINER,
        binds=values[settings.VFIO_BIND] == MANAGER,
        take_over=values[settings.TAKE_OVER],
        # Its label is paused with the others, or gone already.
        driver_pod_leaves=True,
        stop_host_services=values[settings.STOP_HOST_SERVICES],
        pod_termination_timeout_s=values[settings.POD_TERMINATION_TIMEOUT],
        device_free_timeout_s=values[settings.DEVICE_FREE_TIMEOUT],
        deadline_s=values[settings.RECONCILE_DEADLINE],
        eviction=workload_rules(values),
        completion=selector(values, settings.WAIT_FOR_COMPLETION_SELECTOR),
        completion_timeout_s=values[settings.WAIT_FOR_COMPLETION_TIMEOUT],
        operator_timeout_s=values[settings.OPERATOR_TIMEOUT],
        retry_wait_s=values[settings.RETRY_WAIT],
    )
