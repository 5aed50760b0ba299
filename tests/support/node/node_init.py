"""The first process of a test node: lays out its mounts and its network, says so, then reaps until it is killed.

Run by `node_keeper` as `node_init.py STATE [--stand-ins]`, in new mount, pid, network, uts and ipc namespaces, with a
/proc of its own. STATE is a folder on a real file system for what overlayfs cannot hold. Without `--stand-ins` modules,
devices and boot id are the kernel's own. Nothing that it mounts outlives it. Standard library only: it starts in a bare
interpreter.
"""

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

NAME = "node-1"
HOST_NAME = "machine-7"
"""Not the Node's name: where the two differ, only NODE_NAME or --node-name tells."""
ADDRESS = "10.77.0.1"
SERVICE_ADDRESS = "10.0.0.1"
READY = "ready"
WITH_STAND_INS = "--stand-ins"

OVERLAID = ("/etc", "/opt", "/usr/lib", "/usr/local", "/var/lib", "/var/log")
REAL_FOLDERS = ("/var/lib/containerd", "/var/lib/kubelet")
STAND_INS = Path("/run/rbln/.stand-ins")
"""A host tree for the stand-in tools, where the driver's pods reach it: its sys/ and dev/ are the node's own."""

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}


def mount(*words: str) -> None:
    """mount(8)."""
    subprocess.run(["mount", *words], check=True)


def make_sys(state: Path) -> None:
    """A sysfs of this network namespace, with the machine's control groups."""
    kept = state / "cgroup"
    kept.mkdir()
    mount("--rbind", "/sys/fs/cgroup", str(kept))
    mount("-t", "sysfs", "sysfs", "/sys")
    mount("--rbind", str(kept), "/sys/fs/cgroup")
    subprocess.run(["umount", "--recursive", "--lazy", str(kept)], check=True)


def make_folders(state: Path) -> None:
    """What the node writes to is its own; of the machine it sees the rest."""
    for number, folder in enumerate(OVERLAID):
        upper, work = state / f"upper{number}", state / f"work{number}"
        upper.mkdir()
        work.mkdir()
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", folder)
    for folder in REAL_FOLDERS:
        real = state / Path(folder).name
        real.mkdir()
        Path(folder).mkdir(exist_ok=True)
        mount("--bind", str(real), folder)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    shutil.rmtree("/etc/cni", ignore_errors=True)
    Path("/etc/machine-id").write_text(f"{secrets.token_hex(16)}\n")
    Path("/etc/hostname").write_text(f"{HOST_NAME}\n")
    socket.sethostname(HOST_NAME)


def make_dev() -> None:
    """A /dev of its own: pods write to the host's."""
    dev = Path("/dev")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(dev))
    for name, (major, minor) in DEVICES.items():
        os.mknod(dev / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        (dev / name).chmod(0o666)
    os.mknod(dev / "kmsg", 0o600 | stat.S_IFCHR, os.makedev(1, 11))
    for name, target in LINKS.items():
        (dev / name).symlink_to(target)
    for name, words in {
        "pts": ("devpts", "newinstance,ptmxmode=0666,mode=620"),
        "shm": ("tmpfs", "mode=1777"),
        "mqueue": ("mqueue", "rw"),
    }.items():
        (dev / name).mkdir()
        mount("-t", words[0], "-o", words[1], words[0], str(dev / name))


def make_stand_ins(state: Path) -> None:
    """Fake modules and devices, and a sysrq and a boot id that belong to nobody's kernel."""
    (STAND_INS / "dev").mkdir(parents=True)
    mount("--bind", "/dev", str(STAND_INS / "dev"))
    for folder in ("sys/module", "sys/bus/pci/devices"):
        fake, real = STAND_INS / folder, Path("/", folder)
        fake.mkdir(parents=True)
        if real.is_dir():
            mount("--bind", str(fake), str(real))
    boot_id = "-".join(secrets.token_hex(size) for size in (4, 2, 2, 2, 6))
    for path, text in (("/proc/sysrq-trigger", ""), ("/proc/sys/kernel/random/boot_id", f"{boot_id}\n")):
        cover = state / Path(path).name
        cover.write_text(text)
        if Path(path).exists():
            mount("--bind", str(cover), path)


def make_network() -> None:
    """Loopback with the service's address, and a bridge that is the node's only interface and default route."""
    for words in (
        "link set lo up",
        f"address add {SERVICE_ADDRESS}/32 dev lo",
        "link add eth0 type bridge",
        f"address add {ADDRESS}/24 dev eth0",
        "link set eth0 up",
        "route add default dev eth0",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def main() -> None:
    state = Path(sys.argv[1])
    make_sys(state)
    make_folders(state)
    if WITH_STAND_INS in sys.argv[2:]:
        make_dev()
        make_stand_ins(state)
    make_network()
    mount("--make-rshared", "/")
    print(READY, flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.sigtimedwait({signal.SIGCHLD}, 1.0)


if __name__ == "__main__":
    main()
