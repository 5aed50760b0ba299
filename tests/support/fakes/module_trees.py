"""A host tree with driver roots of any modules, and a record of what was loaded and unloaded, in its order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import modules as kmod
from driver_manager.adapters.host.system import LinuxHost, read_host
from driver_manager.adapters.process.run import run
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.host import Host
from driver_manager.domain.profile import Profile
from driver_manager.sandbox.host import KERNEL, HostTree
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_documents import roots_of
from tests.support.fakes.host_folders import load


class ModuleHost:
    """A host whose tools act on a tree. `did` are the calls of rmmod, modprobe and insmod that changed it.

    `options` were handed to modprobe for each module, `inserted` to insmod.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, profile: Profile) -> None:
        self.profile = profile
        self.tree = HostTree(folder / "host", folder / "bin", profile)
        self.tree.build()
        self.did: list[tuple[str, str]] = []
        self.options: dict[str, str] = {}
        self.inserted: dict[str, list[str]] = {}
        monkeypatch.setenv("PATH", str(self.tree.bin), prepend=":")
        monkeypatch.setattr(kmod, "run", self._run)
        self.roots = roots_of(self.tree.root)
        self.system = LinuxHost(self.roots, profile, FakeClock())

    def _run(self, argv: Sequence[str], **options: Any) -> Result:
        only_looks = {"--show-depends", "--dump-modversions"} & set(argv)
        if argv[0] in ("rmmod", "insmod", "modprobe") and not only_looks:
            self.did.append((argv[0], Path(argv[2] if argv[0] == "insmod" else argv[-1]).name))
        if argv[0] == "insmod":
            self.inserted[Path(argv[2]).stem] = list(argv[3:])
        for at, word in enumerate(argv):
            if word == "--config" and argv[at + 1].startswith("/proc/self/fd/"):
                lines = (line.split(None, 2) for line in Path(argv[at + 1]).read_text().splitlines())
                self.options |= {name: text for _, name, text in lines}
        return run(argv, **options)

    def add(self, root: str, version: str, kernel: str = KERNEL, **modules: Sequence[str]) -> None:
        """A driver root that offers `modules` for a kernel, each with what it needs."""
        folder = self.tree.root / root.lstrip("/") / "lib/modules" / kernel / "extra"
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for name, needs in modules.items():
            facts = {"version": version, "vermagic": f"{kernel} SMP mod_unload", "depends": list(needs)}
            (folder / f"{name}.ko").write_text(json.dumps(facts))
            lines.append(f"extra/{name}.ko: {' '.join(f'extra/{need}.ko' for need in needs)}")
        (folder.parent / "modules.dep").write_text("\n".join(lines) + "\n")

    def loaded(self, name: str, *, users: int = 0, holders: Sequence[str] = (), **parameters: str) -> None:
        load(self.tree.root / "sys", name, *holders, refcnt=f"{users + len(holders)}\n")
        for parameter, value in parameters.items():
            self.tree.write(f"sys/module/{name}/parameters/{parameter}", value)

    @property
    def names(self) -> set[str]:
        return {path.name for path in (self.tree.root / "sys/module").iterdir()}

    def facts(self, root: str = "", *, loads: bool = True) -> Host:
        return read_host(self.roots, self.profile, root, None, loads=loads)
