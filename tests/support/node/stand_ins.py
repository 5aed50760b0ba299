"""kmod's tools on a node of the tests: the sandbox's stand-ins, on the fake modules and the devices of that node.

Run as `stand_ins.py TOOL ARGUMENT…` in a container that has the host's /run/rbln, or what is in it for us at `APART`. A
device is a node that opens, of the kernel's tun driver. Standard library only: it lies in an image beside
`fake_tools.py`, which it uses.
"""

import importlib
import os
import stat
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
fake_tools = importlib.import_module("fake_tools")

SHARED, APART = Path("/run/rbln/.stand-ins"), Path("/run/stand-ins")
TREE = SHARED if SHARED.is_dir() else APART
TUN = os.makedev(10, 200)


def arguments(tool: str, given: list[str]) -> list[str]:
    """As the stand-in reads them, which knows the long options that driver-manager gives."""
    if tool != "modprobe" or "-d" not in given:
        return given
    root = given[given.index("-d") + 1]
    return ["--dirname", root, "--set-version", os.uname().release, given[-1]]


def make_devices() -> None:
    """Make each device that a stand-in made as a plain file one that opens."""
    for name in fake_tools.DEVICES.values():
        device = TREE / "dev" / name
        if device.is_file():
            device.unlink()
            os.mknod(device, 0o666 | stat.S_IFCHR, TUN)


def main(argv: list[str]) -> int:
    tool, *given = argv
    status = int(fake_tools.main([tool, str(TREE), *arguments(tool, given)]))
    make_devices()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
