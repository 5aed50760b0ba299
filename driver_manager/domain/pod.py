"""The pods of a node and the claims of devices that they hold, as this program sees them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from driver_manager.domain.frozen import Frozen

PROGRAM = "driver-manager"
"""The command of a container that runs the manager, without its folder."""

ROLLOUT = "DriverRollout"
"""The kind whose objects control the pods of a rollout's tasks."""


class Pod(Frozen):
    """A pod on the node. `selector_keys` are the node-label keys that its placement requires.

    `resources` are the extended resources it asks for, `claims` the names of its ResourceClaims (those made from a
    template under their made names). `grace_period_s` is what its deletion was given, `termination_grace_s` what it
    asks for; `due_s` is when that grace is over, in seconds since the epoch on the API server's clock, None where it is
    not told. `static_uid` is the uid that the host knows a mirror pod by. `config_digest` is the driver's digest in the
    environment of any container, `main_digest` that of the first one. `have_ended`: whether all its containers have;
    None where its status does not tell of each. `started_s` is since when the first of its containers runs that run
    now, in seconds since the epoch on the node's clock; None where none runs. `controller` is its controller's uid.
    `images` and `programs` are those of all its containers, a program without its folder.
    """

    namespace: str
    name: str
    uid: str
    phase: str = "Running"
    selector_keys: frozenset[str] = frozenset()
    owner_kind: str = ""
    is_mirror: bool = False
    static_uid: str = ""
    deleting: bool = False
    grace_period_s: int | None = None
    due_s: float | None = None
    finalizers: tuple[str, ...] = ()
    reason: str = ""
    host_paths: tuple[str, ...] = ()
    config_digest: str = ""
    main_digest: str = ""
    main_container: str = ""
    main_started: bool = False
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    has_empty_dir: bool = False
    termination_grace_s: int = 30
    have_ended: bool | None = None
    started_s: float | None = None
    controller: str = ""
    images: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether its containers have ended for good.

        A kubelet that refuses a pod when it starts again, or evicts it, reports Failed before it ends the containers,
        and without a word of them. Such a pod of a DaemonSet is removed by its controller; one of anybody else may stay
        as a record for ever, so that one is believed.
        """
        if self.phase == "Failed":
            return self.owner_kind != "DaemonSet" if self.have_ended is None else self.have_ended
        return self.phase == "Succeeded"

    @property
    def has_left(self) -> bool:
        """Whether nothing of it runs any more, though its object may be there: a kubelet may remove it a minute later.

        Of a pod with claims only the removal counts: until then its devices are not given back.
        """
        return self.is_over or (self.deleting and self.have_ended is True and not self.claims)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodList(Frozen):
    """Pods of one node and the resourceVersion from which a watch continues without a gap.

    `namespace`: only the pods of this one could be listed; "" where all could.
    """

    pods: tuple[Pod, ...]
    resource_version: str
    namespace: str = ""


class Claim(Frozen):
    """A ResourceClaim: the device classes it asks for, and the drivers of what was allocated to it."""

    namespace: str
    name: str
    device_classes: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
