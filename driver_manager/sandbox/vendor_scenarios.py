"""The sandbox's whole swaps by the profiles of further vendors, as data: each by its own order, switches and probe.

Imports only the domain and the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from driver_manager.domain.errors import ExitCode
from driver_manager.sandbox.host_tree import HostTree
from driver_manager.sandbox.scenario import NEW, OLD, OLD_DIGEST, Interference, Scenario

ASKS = ("status", "--probe")

AMD: Mapping[str, Sequence[str]] = {"amdkcl": (), "amdttm": ("amdkcl",), "amdgpu": ("amdkcl", "amdttm")}
GAUDI: Mapping[str, Sequence[str]] = dict.fromkeys(
    ("habanalabs", "habanalabs_cn", "habanalabs_ib", "habanalabs_en"), ()
)
"""They meet on a bus, so nothing in modules.dep orders them."""

FURIOSA: Mapping[str, Sequence[str]] = {"furiosa_rngd": ()}
TENSTORRENT: Mapping[str, Sequence[str]] = {"tenstorrent": ()}


def _old_and_new(vendor: str, modules: Mapping[str, Sequence[str]], samples: int = 0) -> Callable[[HostTree], None]:
    """The old driver is loaded, the new one is on the host; devices are at work for so many samples."""

    def prepare(tree: HostTree) -> None:
        old, new = _root(vendor, OLD), _root(vendor, NEW)
        tree.add_driver(old, OLD, modules=modules)
        tree.load(old)
        tree.record(OLD_DIGEST, old, OLD)
        tree.add_driver(new, NEW, modules=modules)
        tree.add_firmware_path()
        if samples:
            tree.put_to_work(samples)

    return prepare


def _root(vendor: str, version: str) -> str:
    """On a disk: a driver that is loaded after a reboot has to outlive it."""
    return f"/opt/{vendor}/{version}"


def _manager(vendor: str) -> dict[str, str]:
    return {"DRIVER_LOAD": "manager", "DRIVER_ROOT": _root(vendor, NEW)}


def _unloaded(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"module {name} unloaded" for name in names)


def _loaded(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"module {name} {NEW} loaded" for name in names)


VENDOR_SCENARIOS = (
    Scenario(
        "amd-reboot",
        "AMD: the loaded driver is never unloaded; a reboot is requested, and after it the new driver is loaded",
        ExitCode.REBOOT_REQUIRED,
        NEW,
        _old_and_new("amd", AMD),
        profile="amd",
        env=_manager("amd"),
        arguments=("--no-wait",),
        interference=Interference.REBOOT_AFTER,
        kernel=(*_loaded(("amdkcl", "amdttm", "amdgpu")), "amd-smi sees a device"),
        asks=ASKS,
    ),
    Scenario(
        "tenstorrent-upgrade",
        "Tenstorrent: an operand that runs without its label is paused; the driver is swapped, the label is removed",
        ExitCode.DONE,
        NEW,
        _old_and_new("tenstorrent", TENSTORRENT),
        profile="tenstorrent",
        env=_manager("tenstorrent"),
        kernel=(*_unloaded(("tenstorrent",)), *_loaded(("tenstorrent",)), "tt-smi sees a device"),
        asks=ASKS,
    ),
    Scenario(
        "gaudi-upgrade",
        "Gaudi: a tenant's pod leaves; four modules without dependencies are swapped in the profile's order",
        ExitCode.DONE,
        NEW,
        _old_and_new("habana", GAUDI),
        meddle=lambda cluster: cluster.add_workload("training-0", app="training", resource=""),
        profile="gaudi",
        env={**_manager("habana"), "ENABLE_NPU_POD_EVICTION": "true"},
        kernel=(*_unloaded(tuple(GAUDI)[::-1]), *_loaded(tuple(GAUDI)), "hl-smi sees a device"),
        asks=ASKS,
    ),
    Scenario(
        "furiosa-upgrade",
        "Furiosa: the NPU is at work though no process has it open; the swap waits until it is idle",
        ExitCode.DONE,
        NEW,
        _old_and_new("furiosa", FURIOSA, samples=1),
        profile="furiosa",
        env=_manager("furiosa"),
        kernel=(
            "furiosa-smi sees a device at work",
            "furiosa-smi sees a device",
            *_unloaded(("furiosa_rngd",)),
            *_loaded(("furiosa_rngd",)),
            "furiosa-smi sees a device",
        ),
        asks=ASKS,
    ),
)
