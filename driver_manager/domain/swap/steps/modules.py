"""Steps that change which driver is in the kernel. Pure data."""

from __future__ import annotations

from driver_manager.domain.digest import in_words
from driver_manager.domain.host import DriverSource
from driver_manager.domain.listing import several
from driver_manager.domain.swap.steps.base import EVICT_PODS, Right, Step


class ModuleStep(Step):
    """What is done to the driver in the kernel."""


class StopServices(ModuleStep):
    """Stop host services that hold the device; they are started again on every way out."""

    names: tuple[str, ...]

    def describe(self) -> str:
        return f"stop host service(s) {', '.join(self.names)}"

    def rights(self) -> tuple[Right, ...]:
        return ()


class WaitForDevice(ModuleStep):
    """Wait until nothing but modules uses the driver's modules; what pods with the uids `apart` have open is no use.

    `whose` says in words which pods these are.
    """

    timeout_s: float
    apart: tuple[str, ...] = ()
    whose: str = "the driver pod"

    def describe(self) -> str:
        but = f", apart from {self.whose}" if self.apart else ""
        return f"wait up to {self.timeout_s:g} s for the device to be free{but}"

    def rights(self) -> tuple[Right, ...]:
        return ()


class RemoveConflicting(ModuleStep):
    """Unload modules that must not be loaded beside the driver; where none comes of it they are loaded again."""

    names: tuple[str, ...]

    def describe(self) -> str:
        return f"unload conflicting module(s) {' → '.join(self.names)}"

    def rights(self) -> tuple[Right, ...]:
        return ()


class UnloadModules(ModuleStep):
    """Unload the driver, holders first; the order is looked up again when it is done.

    `clients` are uids of pods that hold the device: they are evicted right before, and the unload is tried in the gap
    before their successors have it open. `pods` are their names.
    """

    names: tuple[str, ...]
    clients: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()

    def describe(self) -> str:
        unload = f"unload {' → '.join(self.names)}"
        if not self.clients:
            return unload
        return f"evict client(s) {several(self.pods)}, and {unload} before their successors open the device"

    def rights(self) -> tuple[Right, ...]:
        return (EVICT_PODS,) if self.clients else ()


class SetFirmwarePath(ModuleStep):
    """Let the kernel look for firmware in the folder that the profile names, before its own."""

    path: str

    def describe(self) -> str:
        return f"set firmware_class.path to {self.path}"

    def rights(self) -> tuple[Right, ...]:
        return ()


class LoadModules(ModuleStep):
    """Load the driver from `source` and verify it; on failure load `previous` again and record its digest.

    `also` are further modules of the driver that were loaded before, as its peers above the roots.
    """

    source: DriverSource
    previous: DriverSource | None
    previous_digest: str = ""
    also: tuple[str, ...] = ()

    def describe(self) -> str:
        version = f" {self.source.version}" if self.source.version else ""
        names = ", ".join(self.source.sequence)
        return f"load {names}{version} from {self.source.root} and verify it"

    def rights(self) -> tuple[Right, ...]:
        return ()


class RecordDigest(ModuleStep):
    """Write the digest to the state file, and where the driver came from."""

    path: str
    digest: str
    record_path: str
    source: DriverSource

    def describe(self) -> str:
        return f"record digest {in_words(self.digest)} in {self.path}"

    def rights(self) -> tuple[Right, ...]:
        return ()


AnyModuleStep = (
    StopServices | WaitForDevice | RemoveConflicting | UnloadModules | SetFirmwarePath | LoadModules | RecordDigest
)
