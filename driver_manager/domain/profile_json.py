"""A profile as JSON, for another process of this version. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from driver_manager.domain.host_paths import HostPaths, NodeMaker
from driver_manager.domain.profile import (
    ChangeBy,
    DeployLabels,
    LoadScope,
    Modules,
    NodeKeys,
    Passthrough,
    Probe,
    Profile,
    RootsNeeded,
    Strategy,
    Transition,
    UpgradeMetrics,
    VendorCommands,
)


def encode(profile: Profile) -> str:
    """The profile as JSON, for another process of this version."""
    return json.dumps(asdict(profile), default=lambda member: member.value)


def decode(text: str) -> Profile:
    """The profile that `encode` wrote."""
    body = _frozen(json.loads(text))
    probe, passthrough = body["probe"], body["passthrough"]
    return Profile(
        **{
            **body,
            "strategy": Strategy(body["strategy"]),
            "keys": NodeKeys(**body["keys"]),
            "modules": Modules(
                **{
                    **body["modules"],
                    "load": LoadScope(body["modules"]["load"]),
                    "roots_needed": RootsNeeded(body["modules"]["roots_needed"]),
                }
            ),
            "paths": HostPaths(
                **{**body["paths"], "device_nodes_made_by": NodeMaker(body["paths"]["device_nodes_made_by"])}
            ),
            "deploy": DeployLabels(**body["deploy"]),
            "probe": None if probe is None else Probe(**probe),
            "passthrough": None if passthrough is None else Passthrough(**passthrough),
            "commands": VendorCommands(**body["commands"]),
            "upgrade_metrics": UpgradeMetrics(**body["upgrade_metrics"]),
            "transitions": tuple(
                Transition(**{**one, "strategy": ChangeBy(one["strategy"])}) for one in body["transitions"]
            ),
        }
    )


def _frozen(value: Any) -> Any:
    """`value` with tuples for lists."""
    match value:
        case dict():
            return {key: _frozen(inner) for key, inner in value.items()}
        case list():
            return tuple(_frozen(inner) for inner in value)
    return value
