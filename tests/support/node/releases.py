"""What differs between Kubernetes releases on a test node: options of its programs, and API groups of its server.

What a program or a server can be asked, it is asked: a flag by `--help`, a group by discovery. The rest follows from
the version.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.control_plane.api import Json
from tests.support.control_plane.old_server import NEW_POLICY, OLD_POLICY

ASK_S = 120.0


@dataclass(frozen=True, order=True)
class Release:
    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """From what `--version` prints, such as `Kubernetes v1.20.2`. Raises ValueError."""
        found = re.search(r"\bv(\d+)\.(\d+)\.(\d+)", text)
        if found is None:
            raise ValueError(f"no version of Kubernetes in {text!r}")
        return cls(*map(int, found.groups()))

    @classmethod
    def of(cls, program: Path) -> Self:
        """The release that a program is of. Raises ValueError, CalledProcessError."""
        return cls.parse(_output(program, "--version"))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


DOCKERSHIM_GONE = Release(1, 24)
"""Its flags are of no use from here on: --network-plugin is gone, --container-runtime ends with 1.26."""
RUNTIME_IN_FILE = Release(1, 27)
"""KubeletConfiguration gets containerRuntimeEndpoint."""
ASKS_FOR_CGROUP_V2 = Release(1, 31)
"""KubeletConfiguration gets failCgroupV1 (KEP 4569); from 1.35 on it is true by default (KEP 5573)."""


def kubelet_flags(release: Release, socket: str) -> list[str]:
    """How a kubelet gets its container runtime on the command line."""
    if release >= RUNTIME_IN_FILE:
        return []
    flags = [f"--container-runtime-endpoint=unix://{socket}"]
    if release < DOCKERSHIM_GONE:
        flags += ["--container-runtime=remote", "--network-plugin=cni"]
    return flags


def kubelet_settings(release: Release, socket: str) -> Json:
    """What a kubelet's file says beside what every release knows; an unknown field keeps it from starting."""
    settings: Json = {}
    if release >= RUNTIME_IN_FILE:
        settings["containerRuntimeEndpoint"] = f"unix://{socket}"
    if release >= ASKS_FOR_CGROUP_V2:
        settings["failCgroupV1"] = False
    return settings


def known_flags(program: Path, *flags: str) -> list[str]:
    """Those of `flags`, each `--name=value`, that the program knows. Raises CalledProcessError."""
    return known(_output(program, "--help"), *flags)


def known(help_text: str, *flags: str) -> list[str]:
    """Those of `flags`, each `--name=value`, that the text of `--help` names."""
    named = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", help_text, re.MULTILINE))
    return [flag for flag in flags if flag.partition("=")[0] in named]


def policy_of(group: Json) -> str:
    """The API version of disruption budgets and evictions, from what a server tells of its group `policy`."""
    return NEW_POLICY if NEW_POLICY in {one["groupVersion"] for one in group["versions"]} else OLD_POLICY


def _output(program: Path, option: str) -> str:
    return subprocess.run([program, option], capture_output=True, text=True, timeout=ASK_S, check=True).stdout
