"""The vendor's tool from a driver root with an older and with a newer C library: real programs, run as the probe is."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.probe import ToolProber, probe_command
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.adapters.process.clock import LoopClock, SystemClock
from driver_manager.adapters.process.run import run
from driver_manager.adapters.process.supervisor import Supervisor
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.host import Health, ProbeResult
from driver_manager.domain.profile import Profile
from driver_manager.profiles import builtin
from tests.support.image.distributions import NEWER, OLDER, Release, tree

ROOT = "/run/vendor/driver"
TIMEOUT_S = 60.0
_UNUSED = shutil.ignore_patterns("share", "gconv")
TEXT = {
    "rebellions": json.dumps({"devices": [{"name": "rbln0", "status": "normal"}]}),
    "nvidia": "0, 00000000:C1:00.0, NVIDIA A100, 31, Enabled\n",
}


class DriverRoot:
    """A driver root made of a release of Debian; its tool is that release's `head`, and what it prints is a file."""

    def __init__(self, host: Path, release: Release) -> None:
        self.host = host
        self.folder = host / ROOT[1:]
        shutil.copytree(tree(release), self.folder, symlinks=True, ignore=_UNUSED)
        for name in ("lib64", "lib", "bin"):
            if not (self.folder / name).exists():  # as base-files makes them
                (self.folder / name).symlink_to(f"/usr/{name}")

    def profile(self, name: str, text: str) -> Profile:
        profile = builtin()[name]
        assert profile.probe is not None
        shutil.copy2(self.folder / "usr/bin/head", self.folder / f"usr/bin/{profile.probe.tool}")
        out = self.folder / "out"
        out.write_text(text)
        probe = replace(profile.probe, args=("--lines=1000", str(out)), preload="", timeout_s=TIMEOUT_S)
        return replace(profile, probe=probe, paths=replace(profile.paths, driver_root=ROOT))

    @property
    def roots(self) -> HostRoots:
        return HostRoots(self.host, self.host / "proc", self.host / "sys", self.host / "dev")


def by_reconcile(root: DriverRoot, profile: Profile) -> ProbeResult:
    clock = SystemClock()
    return LinuxHost(root.roots, profile, clock).probe(ROOT, Deadline.after(TIMEOUT_S, clock.monotonic))


def by_health_watch(root: DriverRoot, profile: Profile) -> ProbeResult:
    return ToolProber(root.roots, profile, ROOT, Supervisor(LoopClock())).sample()


Sample = Callable[[DriverRoot, Profile], ProbeResult]


@pytest.fixture(params=[OLDER, NEWER], ids=lambda release: release.codename)
def root(tmp_path: Path, request: pytest.FixtureRequest, releases: None) -> DriverRoot:
    return DriverRoot(tmp_path / "host", request.param)


each_sample = pytest.mark.parametrize("sample", [by_reconcile, by_health_watch])


@each_sample
@pytest.mark.parametrize("vendor", TEXT)
def test_a_device_is_healthy_or_not_whatever_the_root_is_made_of(root: DriverRoot, vendor: str, sample: Sample) -> None:
    result = sample(root, root.profile(vendor, TEXT[vendor]))
    assert result.health is Health.HEALTHY, result.reason
    if vendor == "rebellions":
        result = sample(root, root.profile(vendor, TEXT[vendor].replace("normal", "error")))
        assert (result.health, result.reason) == (Health.UNHEALTHY, "rbln0 is error")


@each_sample
def test_a_tool_whose_library_is_not_in_its_root_is_unknown(root: DriverRoot, sample: Sample) -> None:
    profile = root.profile("rebellions", TEXT["rebellions"])
    for path in (*root.folder.rglob("libc.so.6"), *root.folder.rglob("libc-2*.so")):
        path.unlink()
    (root.folder / "usr/lib/x86_64-linux-gnu/libc.so.6").write_bytes(b"\x7fELF truncated")
    result = sample(root, profile)
    assert (result.health, result.is_tool_broken) == (Health.UNKNOWN, True), result


def test_nothing_but_the_roots_own_libraries_is_loaded_and_what_is_to_be_preloaded_is(root: DriverRoot) -> None:
    """The tool of Rebellions needs a library preloaded (rbln-npu-operator, cmd/rbln-validator): libm stands for it."""
    probe = root.profile("rebellions", "").probe
    assert probe is not None
    wanted = replace(probe, args=("--lines=1000", "/proc/self/maps"), preload="libm.so.6")
    command = probe_command(root.roots.files(), wanted, ROOT)
    assert command is not None
    done = run(command.argv, env=command.env, timeout_s=TIMEOUT_S)
    assert done.status == 0, done.err
    mapped = {line.split()[-1] for line in done.out.splitlines() if "/" in line}
    assert all(path.startswith(f"{root.folder}/") for path in mapped), mapped
    assert any("libm" in path for path in mapped)


@each_sample
def test_the_newer_tool_fails_without_its_own_loader(tmp_path: Path, releases: None, sample: Sample) -> None:
    """Of two roots with one tool only that with the tool's own C library will do, whatever library this machine has."""
    older = DriverRoot(tmp_path / "host", OLDER)
    profile = older.profile("rebellions", TEXT["rebellions"])
    assert profile.probe is not None
    shutil.copy2(tree(NEWER) / "usr/bin/head", older.folder / f"usr/bin/{profile.probe.tool}")
    result = sample(older, profile)
    assert (result.health, result.is_tool_broken) == (Health.UNKNOWN, True), result
    assert re.search(r"`GLIBC_2\.3\d' not found", result.reason), result
