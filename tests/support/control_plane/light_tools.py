"""Stand-ins of the sandbox's reading tools that start in a millisecond: a sweep starts thousands of them.

They answer in the same words; what changes something on the host is left to the sandbox's own. A test compares them.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from driver_manager.sandbox.host_tree import HostTree

_MODINFO = """\
#!/bin/sh
exec cat {info}"$1"
"""
_MODPROBE = """\
#!/bin/sh
case $1 in --dump-modversions | --show-depends) exit 0 ;; esac
exec {modprobe} "$@"
"""
_RBLN_SMI = """\
#!/bin/sh
read -r version 2>/dev/null < {module}/version || {{ echo "rbln-smi: no driver" >&2; exit 1; }}
printf '{answer}\\n' "$version"
"""
_ANSWER = '{"KMD_version": "%s", "devices": [{"npu": 0, "name": "RBLN-CA12", "status": "normal", "device": "rbln0"}]}'


def lighten(tree: HostTree) -> None:
    """Put them in place of the tools of a host whose drivers are all there."""
    info, root = tree.bin.with_name("modinfo"), str(tree.root)
    for module in tree.root.rglob("*.ko"):
        facts = json.loads(module.read_text())
        fields = {"version": facts["version"], "vermagic": facts["vermagic"], "depends": ",".join(facts["depends"])}
        answer = Path(f"{info}{module}")
        answer.parent.mkdir(parents=True, exist_ok=True)
        answer.write_text("".join(f"{f'{name}:':<16}{value}\n" for name, value in fields.items()))
    _write(tree.bin / "modinfo", _MODINFO.format(info=shlex.quote(str(info))))
    heavy = tree.bin / "modprobe-itself"
    if not heavy.exists():
        (tree.bin / "modprobe").rename(heavy)
        _write(tree.bin / "modprobe", _MODPROBE.format(modprobe=shlex.quote(str(heavy))))
    for smi in tree.root.rglob("rbln-smi"):
        _write(smi, _RBLN_SMI.format(module=shlex.quote(f"{root}/sys/module/rebellions"), answer=_ANSWER))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
