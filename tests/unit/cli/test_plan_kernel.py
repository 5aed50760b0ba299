"""`plan --kernel RELEASE`: whether the driver fits a kernel that does not run yet. No API server is there."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import modules as module_tree
from driver_manager.adapters.process.run import run
from driver_manager.adapters.process.tools import Result
from driver_manager.cli.main import run as command
from driver_manager.domain.errors import ExitCode
from driver_manager.sandbox.host import KERNEL
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.module_trees import ModuleHost
from tests.support.fakes.schemas import conforms

NEXT, ROOT = "6.12.0-next", "/opt/driver"
SYMVERS = "0x000000aa\tmodule_layout\tvmlinux\tEXPORT_SYMBOL\t\n0x000000bb\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n"


class Next:
    """A host with the driver for two kernels, of which one runs; the module needs `symbols`, with these checksums."""

    def __init__(self, host: ModuleHost) -> None:
        self.host = host
        self.symbols = frozenset({"module_layout", "printk"})
        self.checksums = "0x000000aa module_layout\n0x000000bb printk\n"

    def write(self, path: str, data: bytes) -> None:
        there = self.host.tree.root / path
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(data)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The next kernel is installed with its headers, and everything fits."""
    host = ModuleHost(tmp_path, monkeypatch, PROFILE)
    found = Next(host)
    for release in (KERNEL, NEXT):
        host.add(ROOT, "2.0", release, rebellions=["rebellions_core"], rebellions_core=[])
        host.add("/", "1", release, loop=[])
    found.write(f"lib/modules/{NEXT}/build/Module.symvers", SYMVERS.encode())

    def ran(argv: Sequence[str], **options: Any) -> Result:
        return Result(0, found.checksums, "") if "--dump-modversions" in argv else run(argv, **options)

    monkeypatch.setattr(module_tree, "run", ran)
    monkeypatch.setattr(module_tree, "needed_symbols", lambda _: found.symbols)
    told = {"HOST_ROOT": str(host.tree.root), "DRIVER_PROFILE": PROFILE.name, "DRIVER_ROOT": ROOT}
    for name, value in {**told, "KUBECONFIG": "/nowhere", "TERMINATION_LOG": str(tmp_path / "log")}.items():
        monkeypatch.setenv(name, value)
    return found


def checked(capfd: pytest.CaptureFixture[str], release: str = NEXT) -> tuple[int, dict[str, bool | None]]:
    """Exit code, and how each check ended."""
    code = command(["plan", "--kernel", release, "-o", "json"])
    body = conforms("plan", capfd.readouterr().out)
    return code, {one["name"]: one["ok"] for one in body["checks"]}


def test_a_driver_that_fits_the_next_kernel_is_exit_0(kernel: Next, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capfd)
    assert set(found.values()) == {True}, found
    assert code == ExitCode.DONE
    assert kernel.host.did == []


@pytest.mark.parametrize("path", [f"boot/symvers-{NEXT}.gz", f"usr/src/kernels/{NEXT}/Module.symvers"])
def test_the_list_of_symbols_is_found_where_distributions_have_it(
    kernel: Next, capfd: pytest.CaptureFixture[str], path: str
) -> None:
    (kernel.host.tree.root / f"lib/modules/{NEXT}/build/Module.symvers").unlink()
    assert checked(capfd)[1]["symbols of rebellions"] is None
    kernel.write(path, gzip.compress(SYMVERS.encode()) if path.endswith(".gz") else SYMVERS.encode())
    assert checked(capfd)[0] == ExitCode.DONE


def test_what_cannot_be_determined_is_no_pass(kernel: Next, capfd: pytest.CaptureFixture[str]) -> None:
    (kernel.host.tree.root / f"lib/modules/{NEXT}/build/Module.symvers").write_bytes(b"\x00garbage")
    code, found = checked(capfd)
    assert (code, found["symbols of rebellions"]) == (ExitCode.PREFLIGHT_FAILED, None)
    assert command(["plan", "--kernel", NEXT]) == ExitCode.PREFLIGHT_FAILED
    assert "what to do: Install that kernel and its headers" in capfd.readouterr().out


def test_a_kernel_without_modules_of_the_driver_does_not_fit(kernel: Next, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capfd, "6.13.0")
    assert (code, found["driver"], found["kernel on the host"]) == (ExitCode.PREFLIGHT_FAILED, False, None)


def test_a_checksum_that_differs_does_not_fit(kernel: Next, capfd: pytest.CaptureFixture[str]) -> None:
    kernel.checksums = "0x000000aa module_layout\n0x000000cc printk\n"
    code, found = checked(capfd)
    assert (code, found["rebellions for this kernel"]) == (ExitCode.PREFLIGHT_FAILED, False)


def test_a_symbol_that_the_next_kernel_lacks_does_not_fit(kernel: Next, capfd: pytest.CaptureFixture[str]) -> None:
    kernel.symbols = frozenset({"printk", "gone"})
    kernel.write("proc/kallsyms", b"0 T printk\n0 T gone\n0 D data\n")
    code, found = checked(capfd)
    assert (code, found["symbols of rebellions"]) == (ExitCode.PREFLIGHT_FAILED, False), "the running kernel has it"


def test_a_dependency_has_to_be_there_for_the_next_kernel(kernel: Next, capfd: pytest.CaptureFixture[str]) -> None:
    kernel.host.add(ROOT, "2.0", NEXT, rebellions=["helper"])
    kernel.host.loaded("helper")
    assert checked(capfd)[1]["dependencies of rebellions"] is False, "only the running kernel has it"
    kernel.host.add("/", "1", NEXT, loop=[], helper=[])
    assert checked(capfd)[1]["dependencies of rebellions"] is True


@pytest.mark.parametrize("release", ["../6.1", "..", " 6.1", "a/b"])
def test_what_is_no_release_is_a_usage_error(kernel: Next, capfd: pytest.CaptureFixture[str], release: str) -> None:
    assert command(["plan", "--kernel", release]) == ExitCode.USAGE
    assert "is not a kernel release" in capfd.readouterr().err


def test_virtual_machines_have_no_driver_to_check(kernel: Next, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["plan", "--kernel", NEXT, "--mode", "vfio"]) == ExitCode.USAGE
