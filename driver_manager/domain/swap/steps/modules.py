"""Steps that change which driver is in the kernel. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from driver_manager.domain.digest import in_words
from driver_manager.domain.model import DriverSource
from driver_manager.domain.swap.steps.base import Right, Step


class ModuleStep(Step):
    """What is done to the driver in the kernel."""


@dataclass(frozen=True)
class StopServices(ModuleStep):
    """Stop host services that hold the device; they are started again on every way out."""

    names: tuple[str, ...]

    def describe(self) -> str:
        return f"stop host service(s) {', '.join(self.names)}"

    def rights(self) -> tuple[Right, ...]:
        return ()


@dataclass(frozen=True)
class WaitForDevice(ModuleStep):
    """Wait until nothing but modules uses the driver's modules; what pods with the uids `apart` have open is no use."""

    timeout_s: float
    apart: tuple[str, ...] = ()

    def describe(self) -> str:
        but = ", apart from the driver pod" if self.apart else ""
        return f"wait up to {self.timeout_s:g} s for the device to be free{but}"

    def rights(self) -> tuple[Right, ...]:
        return ()


@dataclass(frozen=True)
class UnloadModules(ModuleStep):
    """Unload the driver, holders first; the order is looked up again when it is done."""

    names: tuple[str, ...]

    def describe(self) -> str:
        return f"unload {' → '.join(self.names)}"

    def rights(self) -> tuple[Right, ...]:
        return ()


@dataclass(frozen=True)
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
        names = ", ".join(module.name for module in self.source.modules)
        return f"load {names}{version} from {self.source.root} and verify it"

    def rights(self) -> tuple[Right, ...]:
        return ()


@dataclass(frozen=True)
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


AnyModuleStep = StopServices | WaitForDevice | UnloadModules | LoadModules | RecordDigest
