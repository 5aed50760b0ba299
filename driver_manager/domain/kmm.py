"""A Module of Kernel Module Management (KMM), and the Node's labels for it. Pure.

KMM unloads and loads kernel modules by worker pods of its own. A label on the Node asks it for a version, and it shows
by another one which version it has loaded there. The facts below are from kubernetes-sigs/kernel-module-management:

- The keys of the labels: internal/utils/kmmlabels.go. Namespace and name of the Module have 39 characters together at
  most: docs/mkdocs/documentation/ordered_upgrade.md.
- A changed version label ends the device plugin, then KMM removes its own label for the workers, unloads, removes the
  label of what is ready, and only then sets that for the workers again, to the new version
  (internal/controllers/node_label_module_version_reconciler.go, labelActionTable, verifyLabelAddValidity). So while the
  workers' label is not what KMM shows as ready, it is about to unload, whatever it is asked for by then.
- It loads a version only where that is the one in the Module's own spec (ordered_upgrade.md,
  internal/controllers/module_reconciler.go, prepareNodeSchedulingData), and unloads only what it has loaded itself:
  over a driver that somebody else has loaded, its load does nothing (internal/controllers/nmc_reconciler.go).
- Worker pods name their node, so no scheduler is asked (internal/pod/workerpodmanager.go, baseWorkerPod). But a node
  with a taint NoSchedule or NoExecute that the Module does not tolerate is no target (internal/node/node.go,
  IsNodeSchedulable): KMM unloads the module of such a node, and loads none there. A cordon sets such a taint. So a run
  must not cordon before KMM is done.
- The label of the loaded version outlives a reboot, until KMM sees the node not ready: by itself it proves nothing
  (internal/controllers/nmc_reconciler.go, Reconcile and UpdateNodeLabels).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.records import Frozen
from driver_manager.domain.selectors import is_label_value
from driver_manager.domain.wire import Fields

PREFIX = "kmm.node.kubernetes.io"
NAME_OF_MODULE = f"{PREFIX}/module.name"
"""On pods of a device plugin that KMM itself runs: the name of the Module, which is in the same namespace."""

MOST_CHARS = 39
"""Of a Module's namespace and name together."""

_NAMES = re.compile(r"([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)/([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)")
"""A name with a dot could not be told from its namespace in the labels (GetNamespaceNameFromVersionLabel)."""


class KmmModule(Frozen):
    """The Module that is the driver, and the `version` of it that is wanted on the node."""

    namespace: str
    name: str
    version: str

    @property
    def asked_key(self) -> str:
        """The label that asks KMM for a version."""
        return f"{PREFIX}/version-module.{self.namespace}.{self.name}"

    @property
    def worker_key(self) -> str:
        """KMM's own label for its workers: the version that they are to load, absent while they unload."""
        return f"beta.{PREFIX}/version-worker-pod.{self.namespace}.{self.name}"

    @property
    def ready_key(self) -> str:
        """The label by which KMM shows the version that it has loaded."""
        return f"{PREFIX}/{self.namespace}.{self.name}.version.ready"

    def asked(self, labels: Mapping[str, str]) -> str:
        """The version that KMM is asked for, "" for none."""
        return labels.get(self.asked_key, "")

    def at_work(self, labels: Mapping[str, str]) -> str:
        """The version that KMM's workers are to load, or have loaded, "" while they unload."""
        return labels.get(self.worker_key, "")

    def ready(self, labels: Mapping[str, str]) -> str:
        """The version that KMM shows as loaded, "" for none."""
        return labels.get(self.ready_key, "")

    def is_asked(self, labels: Mapping[str, str]) -> bool:
        """Whether KMM is asked for the wanted version."""
        return self.asked(labels) == self.version

    def is_ready(self, labels: Mapping[str, str]) -> bool:
        """Whether KMM shows the wanted version, and is not about to change it."""
        return self.ready(labels) == self.version and not self.is_changing(labels)

    def is_changing(self, labels: Mapping[str, str]) -> bool:
        """Whether KMM is asked for, or at work on, something else than it shows: modules may change at any moment.

        Asked for no version, it unloads the one that it shows.
        """
        return not self.asked(labels) == self.at_work(labels) == self.ready(labels)

    def has_not_begun(self, labels: Mapping[str, str]) -> bool:
        """Whether KMM still has the wanted version loaded, whatever else it is asked for."""
        return self.at_work(labels) == self.ready(labels) == self.version

    def may_load_another(self, labels: Mapping[str, str]) -> bool:
        """Whether KMM could yet load another version than the wanted one, as it does after a boot."""
        return not {self.at_work(labels), self.ready(labels)} <= {"", self.version}

    def shown(self, labels: Mapping[str, str]) -> str:
        """What the labels say, for people."""
        values = {"asked": self.asked(labels), "workers": self.at_work(labels), "ready": self.ready(labels)}
        return ", ".join(f"{name}: {value or 'no version'}" for name, value in values.items())

    def worker(self, node: str) -> str:
        """The pod that changes modules on `node`, as namespace/name (internal/pod/workerpodmanager.go)."""
        return f"{self.namespace}/kmm-worker-{node}-{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class KmmRequest(Frozen):
    """What KMM was asked for, by a run in the boot `boot_id`, and the load of the driver that it is to replace.

    `load` is as `HostSystem.load_id` has it, "" where no driver was loaded. `shown` is the version that KMM showed for
    that load by then, "" for none.
    """

    module: KmmModule
    boot_id: str
    load: str
    shown: str

    def is_in_the_way(self, boot_id: str, load: str, wanted: str) -> bool:
        """Whether the present `load` is still that one, and is not the `wanted` version."""
        return self.is_of(boot_id, load) and self.shown != wanted

    def is_of(self, boot_id: str, load: str) -> bool:
        """Whether it names this load of the driver."""
        return bool(load) and (self.boot_id, self.load) == (boot_id, load)

    def to_json(self) -> dict[str, str]:
        """As the journal has it."""
        module = {"namespace": self.module.namespace, "name": self.module.name, "version": self.module.version}
        return {**module, "bootId": self.boot_id, "load": self.load, "shown": self.shown}


def is_used(labels: Mapping[str, str]) -> bool:
    """Whether KMM is asked for a version of any Module on a node with `labels`."""
    return any(key.startswith(f"{PREFIX}/version-module.") for key in labels)


def request_in(body: Fields) -> KmmRequest:
    """The request that `KmmRequest.to_json` wrote. Raises the error of `body` for anything else."""
    module = KmmModule(body.text("namespace"), body.text("name"), body.text("version"))
    return KmmRequest(module, body.text("bootId"), body.text("load"), body.text("shown"))


def parse(module: str, version: str) -> KmmModule:
    """The Module in KMM_MODULE and KMM_VERSION. Raises ConfigError where one is missing or no label can hold it."""
    found = _NAMES.fullmatch(module)
    if found is None or len(module) - 1 > MOST_CHARS:
        raise ConfigError(
            f"KMM_MODULE is {module!r}, which is not <namespace>/<name> of a KMM Module",
            f"Set KMM_MODULE (--kmm-module); both parts together have {MOST_CHARS} characters at most, and no dots.",
        )
    if not version or not is_label_value(version):
        raise ConfigError(
            f"KMM_VERSION is {version!r}, which is not a version that a label can have",
            "Set KMM_VERSION (--kmm-version) to spec.moduleLoader.container.version of the Module.",
        )
    return KmmModule(found[1], found[2], version)
