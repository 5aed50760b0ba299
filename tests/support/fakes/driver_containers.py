"""Owns an entry program of images/ on a tree of its own: its settings, how it is run, and a stand-in modprobe.

Must not import the product.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.docs.markdown import ROOT

KERNEL = os.uname().release
LIMIT_S = 150.0
STAYS = ("is current", " is loaded from ", "was loaded by")
"""Of what a program says last, before it stays until it is asked to end."""


class EntryProgram:
    """The entry program of images/`kind`, on the tree in `folder`."""

    def __init__(
        self, kind: str, folder: Path, module_name: str = "rebellions", further: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.module_name, self.further = folder, module_name, further or {}
        self.script = str(ROOT / "images" / kind / kind)
        self.root, self.state = folder / "run/driver", folder / "run/driver.state"
        self.marker = folder / "run/validations/.ready"
        self.module = folder / "sys/module" / module_name

    def environment(self, **env: str) -> dict[str, str]:
        paths = {"DRIVER_TREE": self.folder / "tree", "DRIVER_ROOT": self.root, "SYS_ROOT": self.folder / "sys"}
        paths |= {"STATE_FILE": self.state, "READY_MARKER": self.marker}
        given = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "DRIVER_VERSION": "2.0.1", "DRIVER_CONFIG_DIGEST": "new"}
        return {**given, **{name: str(path) for name, path in paths.items()}, **self.further, **env}

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv, given = [self.script, *arguments], self.environment(**env)
        return subprocess.run(argv, env=given, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def start(self, **env: str) -> subprocess.Popen[str]:
        argv, given = [self.script], self.environment(**env)
        with (self.folder / "output").open("w") as output:
            # A session of its own: its sleep ends with it.
            return subprocess.Popen(argv, env=given, stderr=output, text=True, start_new_session=True)

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def load(self, version: str, digest: str = "") -> None:
        """This version is loaded, and recorded by its digest."""
        if digest:
            self.record(digest)
        self.module.mkdir(parents=True)
        (self.module / "initstate").write_text("live\n")
        (self.module / "version").write_text(f"{version}\n")

    def record(self, digest: str) -> None:
        self.state.parent.mkdir(parents=True, exist_ok=True)
        self.state.write_text(f"{digest}\n")

    def tool(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}")
        path.chmod(0o755)

    def tree(self, folder: Path) -> None:
        """A driver's tree for this kernel in `folder`, and a modprobe that loads 2.0.1 where it is not loaded yet."""
        modules = folder / "lib/modules" / KERNEL
        modules.mkdir(parents=True)
        (modules / "modules.dep").write_text(f"updates/{self.module_name}.ko.xz:\n")
        last = f"for name; do :; done\nmodule={self.module.parent}/$name\n[ -d $module ] && exit 0\n"
        load = f"mkdir -p $module\necho live >$module/initstate\necho $name >>{self.folder}/loaded\n"
        self.tool("modprobe", f"{last}{load}echo 2.0.1 >$module/version\n")

    def loaded(self) -> list[str]:
        return (self.folder / "loaded").read_text().split()

    def ended(self, process: subprocess.Popen[str], **env: str) -> int:
        """Ask it to end once it stays and is ready; its exit status."""
        self.wait(process, lambda: any(words in self.output() for words in STAYS))
        self.wait(process, lambda: not self.run("ready", **env).returncode)
        return self.end(process)

    def wait(self, process: subprocess.Popen[str], check: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not check():
            assert process.poll() is None, self.output()
            assert time.monotonic() < deadline_s, self.output()
            time.sleep(0.02)

    def end(self, process: subprocess.Popen[str]) -> int:
        os.killpg(process.pid, signal.SIGTERM)
        status = process.wait(LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return status
