"""Stand-ins for kmod's, systemd's and the vendors' tools that work on a sandbox host tree instead of a kernel.

Run as a program: `fake_tools.py TOOL TREE ARGUMENT…`. Failures have the words of the real tools. Standard library
only, and nothing of the package: it starts in a bare interpreter.
"""

import http.client
import json
import sys
import time
from pathlib import Path

DEVICES = {
    "rebellions": "rbln0",
    "drv_pcie_host": "davinci0",
    "amdgpu": "kfd",
    "furiosa_rngd": "rngd/npu0mgmt",
    "habanalabs": "accel/accel0",
    "tenstorrent": "tenstorrent/0",
}
KERNEL_LOG = "kernel-log"
"""The log of module operations and of a vendor tool's samples: lines of monotonic time in seconds and text."""

AT_WORK = "run/devices-at-work"
"""The number of further samples that show the devices at work."""

OFFERED_DRIVERS = "offered-drivers"
"""A file with an API server, the path of a DaemonSet there, and a patch for each driver version."""

REBOOT_ASKED = "reboot-asked"
WEDGED = "run/chip-is-wedged"
"""A file that makes the vendor's tool report the chip as bad: it has the step that heals it; each boot does."""

RESET, RELOAD = "reset", "reload"

NPU_SMI_TABLE = """\
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 93.0        44                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3161 / 65536         |
+===========================+===============+====================================================+"""
ANSWERS = {
    "amd-smi": ("amdgpu", '[{"gpu": 0, "bdf": "0000:c1:00.0", "kfd_id": 42905, "node_id": 1, "partition_id": 0}]'),
    "furiosa-smi": (
        "furiosa_rngd",
        '[{"arch": "rngd", "device": "npu0", "liveness": "alive", "pe_utilizations": [{"pe_occupancy": %s}]}]',
    ),
    "hl-smi": ("habanalabs", "0, 0000:c1:00.0, HL-225"),
    "nvidia-smi": ("nvidia", "0, 00000000:C1:00.0, NVIDIA A100-SXM4-80GB, 31, Enabled"),
    "tt-smi": (
        "tenstorrent",
        '{"device_info": [{"board_info": {"board_type": "p300c", "bus_id": "0000:c1:00.0"}, "telemetry": {"t": 1}}]}',
    ),
}
"""For each vendor tool the module that it needs, and its output for one device. `%s`: true if the device is at work.
The forms are those of the recordings in tests/unit/golden/probes."""

WEDGED_ANSWERS = {"tt-smi": ANSWERS["tt-smi"][1].replace('{"t": 1}', "null")}
"""The output for a wedged device, which a tool without one has as for a healthy one."""

RESETS, SEES = "resets a device", "sees a device"

BUSY = "rmmod: ERROR: Module {} is in use"


def main(argv: list[str]) -> int:
    """Run the tool named first, on the tree named second; its exit status."""
    tool, tree, *arguments = argv
    arguments = [word for word in arguments if word != "--"]
    tools = {
        "rmmod": rmmod,
        "modprobe": modprobe,
        "insmod": insmod,
        "modinfo": modinfo,
        "umount": umount,
        "rbln-smi": rbln_smi,
        "npu-smi": npu_smi,
        "systemctl": systemctl,
        "new-driver": new_driver,
    }
    return tools[tool](Path(tree), arguments) if tool in tools else answer(Path(tree), tool, arguments)


def rmmod(tree: Path, arguments: list[str]) -> int:
    """Remove a module from the tree's /sys unless its reference count is above zero."""
    name = arguments[-1]
    module = tree / "sys/module" / name
    if not module.is_dir():
        return fail(f"rmmod: ERROR: Module {name} is not currently loaded")
    if int((module / "refcnt").read_text()) > 0:
        return fail(BUSY.format(name))
    for other in (tree / "sys/module").iterdir():
        link = other / "holders" / name
        if link.exists():
            link.unlink()
            count(other, -1)
    # sysfs never uses an inode number twice: the renamed folder keeps this one.
    empty(module, tree / "sys" / f".gone-{name}-{time.monotonic_ns()}")
    note(tree, f"module {name} unloaded")
    if name in DEVICES:
        (tree / "dev" / DEVICES[name]).unlink(missing_ok=True)
    return 0


def modprobe(tree: Path, arguments: list[str]) -> int:
    """Load a module and its dependencies from `--dirname`. A loaded module stays."""
    if "--dump-modversions" in arguments:
        return 0  # as for a kernel without symbol versions
    root = Path(arguments[arguments.index("--dirname") + 1])
    kernel = arguments[arguments.index("--set-version") + 1]
    folder = root / "lib/modules" / kernel
    dependencies = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        entry, _, needs = line.partition(":")
        dependencies[Path(entry).stem] = (folder / entry, [Path(need).stem for need in needs.split()])
    if "--show-depends" in arguments:
        return show(arguments[-1], dependencies)
    return insert(tree, arguments[-1], dependencies)


def show(name: str, dependencies: dict[str, tuple[Path, list[str]]]) -> int:
    """Print the files that loading `name` inserts, in order."""
    if name not in dependencies:
        return fail(f"modprobe: FATAL: Module {name} not found")
    path, needs = dependencies[name]
    for need in needs:
        show(need, dependencies)
    print(f"insmod {path} ")  # noqa: T201  # this program's output
    return 0


def insmod(tree: Path, arguments: list[str]) -> int:
    """Load a module file. Without its dependencies it has unknown symbols."""
    path = Path(arguments[0])
    name, needs = path.name.partition(".ko")[0], json.loads(path.read_text()).get("depends", [])
    if (tree / "sys/module" / name).is_dir():
        return fail(f"insmod: ERROR: could not insert module {path}: File exists")
    if not all((tree / "sys/module" / need).is_dir() for need in needs):
        return fail(f"insmod: ERROR: could not insert module {path}: Unknown symbol in module")
    return insert(tree, name, {name: (path, needs)})


def insert(tree: Path, name: str, dependencies: dict[str, tuple[Path, list[str]]]) -> int:
    """Load `name` after its dependencies. After a failure, loaded dependencies stay."""
    if (tree / "sys/module" / name).is_dir():
        return 0
    if name not in dependencies:
        return fail(f"modprobe: FATAL: Module {name} not found")
    path, needs = dependencies[name]
    for need in needs:
        status = insert(tree, need, dependencies)
        if status:
            return status
    facts = json.loads(path.read_text())
    time.sleep(facts.get("seconds", 0.0))  # the load time in the scenario
    if facts.get("fails"):
        return fail(f"modprobe: ERROR: could not insert '{name}': Input/output error")
    module = tree / "sys/module" / name
    (module / "holders").mkdir(parents=True)
    for file, text in (("refcnt", "0"), ("version", facts["version"]), ("initstate", "live")):
        (module / file).write_text(f"{text}\n")
    for need in needs:
        (tree / "sys/module" / need / "holders" / name).touch()
        count(tree / "sys/module" / need, 1)
    note(tree, f"module {name} {facts['version']} loaded")
    if name in DEVICES:
        node = tree / "dev" / DEVICES[name]
        node.parent.mkdir(exist_ok=True)
        node.touch()
        heal(tree, RELOAD)
    return 0


def modinfo(_: Path, arguments: list[str]) -> int:
    facts = json.loads(Path(arguments[-1]).read_text())
    for field in ("version", "vermagic"):
        print(f"{field + ':':<16}{facts[field]}")  # noqa: T201  # this program's output
    print(f"{'depends:':<16}{','.join(facts.get('depends', []))}")  # noqa: T201  # this program's output
    return 0


def umount(tree: Path, arguments: list[str]) -> int:
    """Drop the last mount at a mount point from the tree's mount table."""
    table = tree / "proc/1/mountinfo"
    point = "/" + str(Path(arguments[-1]).relative_to(tree))
    lines = table.read_text().splitlines()
    for number in reversed(range(len(lines))):
        if lines[number].split(" ")[4] == point:
            del lines[number]
            table.write_text("".join(f"{line}\n" for line in lines))
            return 0
    return fail(f"umount: {point}: not mounted.", 32)


def systemctl(tree: Path, arguments: list[str]) -> int:
    """Start a service, which has a cgroup while it runs; stop it and its processes; or record a reboot."""
    verb, name = arguments[0], arguments[-1]
    if verb == "reboot":
        (tree / REBOOT_ASKED).touch()
        return 0
    group = tree / "sys/fs/cgroup/system.slice" / name
    if verb == "start":
        group.mkdir(parents=True, exist_ok=True)
        return 0
    if group.is_dir():
        group.rmdir()
    for member in (tree / "proc").glob("[0-9]*/cgroup"):
        if member.read_text() == f"0::/system.slice/{name}\n":
            device = str((member.parent / "fd/3").readlink()).removeprefix("/dev/")
            remove(member.parent)
            count(tree / "sys/module" / next(one for one, of in DEVICES.items() if of == device), -1)
    return 0


def new_driver(tree: Path, versions: list[str]) -> int:
    """Write the template of a driver version to the DaemonSet, as `kubectl apply` does."""
    offered = json.loads((tree / OFFERED_DRIVERS).read_text())
    if len(versions) != 1 or versions[0] not in offered["bodies"]:
        return fail(f"usage: new-driver {'|'.join(offered['bodies'])}", 2)
    connection = http.client.HTTPConnection(offered["server"])
    body = json.dumps(offered["bodies"][versions[0]])
    connection.request("PATCH", offered["path"], body, {"Content-Type": "application/merge-patch+json"})
    status = connection.getresponse().status
    return 0 if status == http.client.OK else fail(f"new-driver: the API server answered {status}")


def rbln_smi(tree: Path, _: list[str]) -> int:
    """`rbln-smi -j` for each device of the bus that the driver has, or one; healthy while the module is loaded."""
    module = tree / "sys/module/rebellions"
    if not module.is_dir():
        return fail("rbln-smi: no driver")
    folder = tree / "sys/bus/pci/devices"
    bound = [one.name for one in sorted(folder.iterdir()) if _driver_of(one) == "rebellions"] if folder.is_dir() else []
    devices = [
        {"npu": number, "name": "RBLN-CA12", "status": "normal", "device": f"rbln{number}", "pci": {"bus_id": address}}
        for number, address in enumerate(bound)
    ] or [{"npu": 0, "name": "RBLN-CA12", "status": "normal", "device": "rbln0"}]
    print(json.dumps({"KMD_version": (module / "version").read_text().strip(), "devices": devices}))  # noqa: T201
    return 0


def _driver_of(device: Path) -> str:
    link = device / "driver"
    return link.readlink().name if link.is_symlink() else ""


def npu_smi(tree: Path, _: list[str]) -> int:
    """`npu-smi info` for one chip, until it is wedged; the exit status is the DCMI code's last byte."""
    if not (tree / "sys/module/drv_pcie_host").is_dir() or (tree / WEDGED).exists():
        print("dcmi module initialize failed. ret is -8005")  # noqa: T201
        return -8005 & 0xFF
    print(NPU_SMI_TABLE)  # noqa: T201
    return 0


def answer(tree: Path, tool: str, arguments: list[str]) -> int:
    """Another vendor's tool; each sample of a healthy device and each reset is logged."""
    module, form = ANSWERS[tool]
    if not (tree / "sys/module" / module).is_dir():
        return fail(f"{tool}: no driver")
    if "-r" in arguments:
        note(tree, f"{tool} {RESETS}")
        heal(tree, RESET)
        return 0
    if (tree / WEDGED).exists() and tool in WEDGED_ANSWERS:
        print(WEDGED_ANSWERS[tool])  # noqa: T201  # this program's output
        return 0
    left = int((tree / AT_WORK).read_text()) if (tree / AT_WORK).exists() else 0
    if left:
        (tree / AT_WORK).write_text(f"{left - 1}\n")
    note(tree, f"{tool} {SEES}{' at work' if left else ''}")
    print(form % json.dumps(left > 0) if "%s" in form else form)  # noqa: T201  # this program's output
    return 0


def heal(tree: Path, step: str) -> None:
    """End the wedge, if `step` is what heals it."""
    wedged = tree / WEDGED
    if wedged.exists() and wedged.read_text().strip() == step:
        wedged.unlink()


def note(tree: Path, text: str) -> None:
    if not (tree / KERNEL_LOG).exists():
        return
    with (tree / KERNEL_LOG).open("a") as log:
        log.write(f"{time.monotonic():.6f} {text}\n")


def count(module: Path, change: int) -> None:
    path, new = module / "refcnt", module / ".refcnt"
    new.write_text(f"{int(path.read_text()) + change}\n")
    new.replace(path)


def remove(folder: Path) -> None:
    gone = folder.parent.parent / f".gone-{folder.name}"
    empty(folder, gone)
    gone.rmdir()


def empty(folder: Path, gone: Path) -> None:
    """Turn `folder` into the empty folder `gone`. It is renamed first, so that it disappears at once."""
    folder.rename(gone)
    for path in sorted(gone.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def fail(text: str, status: int = 1) -> int:
    print(text, file=sys.stderr)  # noqa: T201  # this program's output
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
