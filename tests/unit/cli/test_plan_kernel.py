"""`plan --kernel RELEASE`: whether the driver fits a kernel that does not run yet. No API server is there."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from driver_manager.adapters.host import modules as module_tree
from driver_manager.adapters.process.run import run
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.errors import ExitCode
from driver_manager.sandbox.host import KERNEL
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.module_trees import ModuleHost
from tests.support.fakes.schemas import conforms
from tests.support.fakes.typed import Prompt

NEXT, ROOT = "6.12.0-next", "/opt/driver"
LISTED = f"lib/modules/{NEXT}/build/Module.symvers"
CHECKSUMS = "0x000000aa module_layout\n0x000000bb printk\n"
SYMVERS = "0x000000aa\tmodule_layout\tvmlinux\tEXPORT_SYMBOL\t\n0x000000bb\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n"


def write(kernel: Any, path: str, data: bytes) -> None:
    there: Path = kernel.host.tree.root / path
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_bytes(data)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A host with the driver for two kernels, the one that runs and the next one with its headers; everything fits.

    The module needs `symbols`, with these `checksums`.
    """
    host = ModuleHost(tmp_path, monkeypatch, PROFILE)
    found = SimpleNamespace(host=host, symbols=frozenset({"module_layout", "printk"}), checksums=CHECKSUMS)
    for release in (KERNEL, NEXT):
        host.add(ROOT, "2.0", release, rebellions=["rebellions_core"], rebellions_core=[])
        host.add("/", "1", release, loop=[])
    write(found, LISTED, SYMVERS.encode())

    def ran(argv: Sequence[str], **options: Any) -> Result:
        return Result(0, found.checksums, "") if "--dump-modversions" in argv else run(argv, **options)

    monkeypatch.setattr(module_tree, "run", ran)
    monkeypatch.setattr(module_tree, "needed_symbols", lambda _: found.symbols)
    env = {"HOST_ROOT": str(host.tree.root), "DRIVER_PROFILE": PROFILE.name, "DRIVER_ROOT": ROOT}
    for name, value in {**env, "KUBECONFIG": "/nowhere", "TERMINATION_LOG": str(tmp_path / "log")}.items():
        monkeypatch.setenv(name, value)
    return found


def checked(prompt: Prompt, release: str = NEXT) -> tuple[int, dict[str, bool | None]]:
    code, out, _ = prompt(f"plan --kernel {release} -o json")
    return code, {one["name"]: one["ok"] for one in conforms("plan", out)["checks"]}


def test_a_driver_that_fits_the_next_kernel_is_exit_0(kernel: Any, prompt: Prompt) -> None:
    code, found = checked(prompt)
    assert (code, set(found.values()), kernel.host.did) == (ExitCode.DONE, {True}, []), found


@pytest.mark.parametrize("path", [f"boot/symvers-{NEXT}.gz", f"usr/src/kernels/{NEXT}/Module.symvers"])
def test_the_list_of_symbols_is_found_where_distributions_have_it(kernel: Any, prompt: Prompt, path: str) -> None:
    (kernel.host.tree.root / LISTED).unlink()
    assert checked(prompt)[1]["symbols of rebellions"] is None
    write(kernel, path, gzip.compress(SYMVERS.encode()) if path.endswith(".gz") else SYMVERS.encode())
    assert checked(prompt)[0] == ExitCode.DONE


def test_what_cannot_be_determined_is_no_pass(kernel: Any, prompt: Prompt) -> None:
    write(kernel, LISTED, b"\x00garbage")
    code, found = checked(prompt)
    assert (code, found["symbols of rebellions"]) == (ExitCode.PREFLIGHT_FAILED, None)
    assert "what to do: Install that kernel and its headers" in prompt.output(
        f"plan --kernel {NEXT}", code=ExitCode.PREFLIGHT_FAILED
    )


def test_no_modules_another_checksum_and_a_missing_symbol_do_not_fit(kernel: Any, prompt: Prompt) -> None:
    code, found = checked(prompt, "6.13.0")
    assert (code, found["driver"], found["kernel on the host"]) == (ExitCode.PREFLIGHT_FAILED, False, None)
    kernel.checksums = "0x000000aa module_layout\n0x000000cc printk\n"
    code, found = checked(prompt)
    assert (code, found["rebellions for this kernel"]) == (ExitCode.PREFLIGHT_FAILED, False)
    kernel.checksums, kernel.symbols = CHECKSUMS, frozenset({"printk", "gone"})
    write(kernel, "proc/kallsyms", b"0 T printk\n0 T gone\n0 D data\n")
    code, found = checked(prompt)
    assert (code, found["symbols of rebellions"]) == (ExitCode.PREFLIGHT_FAILED, False), "the running kernel has it"


def test_a_dependency_has_to_be_there_for_the_next_kernel(kernel: Any, prompt: Prompt) -> None:
    kernel.host.add(ROOT, "2.0", NEXT, rebellions=["helper"])
    kernel.host.loaded("helper")
    assert checked(prompt)[1]["dependencies of rebellions"] is False, "only the running kernel has it"
    kernel.host.add("/", "1", NEXT, loop=[], helper=[])
    assert checked(prompt)[1]["dependencies of rebellions"] is True


def test_what_is_no_release_and_virtual_machines_without_a_driver_are_usage_errors(kernel: Any, prompt: Prompt) -> None:
    for release in ("../6.1", "..", " 6.1", "a/b"):
        assert "is not a kernel release" in prompt.errors("plan --kernel", release)
    assert prompt(f"plan --kernel {NEXT} --mode vfio").code == ExitCode.USAGE
