"""Stand-ins of the sandbox's reading tools that start in a millisecond: the tests start thousands of them.

They answer in the same words, but for --show-depends of a module that is there: of that only the status is looked at.
What changes something on the host, and what they do not know, is left to the sandbox's own, which takes fifty. A test
compares them.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from driver_manager.sandbox.host import HostTree

_MODINFO = """\
#!/bin/sh
read -r facts 2>/dev/null < "$1"
case $facts in
    *\\\\*) exec {itself} "$@" ;;
    '{{"version": "'*'", "vermagic": "'*'", "depends": ['*']'*) ;;
    *) exec {itself} "$@" ;;
esac
field() {{
    value=${{facts#*"\\"$1\\": \\""}}
    printf '%-16s%s\\n' "$1:" "${{value%%\\"*}}"
}}
field version
field vermagic
needs=${{facts#*'"depends": ['}}
IFS='", '
for need in ${{needs%%]*}}; do names=${{names-}}${{need:+${{names:+,}}$need}}; done
printf '%-16s%s\\n' depends: "${{names-}}"
"""
_MODPROBE = """\
#!/bin/sh
case $1 in
    --dump-modversions) exit 0 ;;
    --show-depends)
        while read -r line; do
            case $line in */"$7".ko:*) exit 0 ;; esac
        done 2>/dev/null < "$3/lib/modules/$5/modules.dep" ;;
esac
exec {itself} "$@"
"""
_RBLN_SMI = """\
#!/bin/sh
read -r version 2>/dev/null < {module}/version || {{ echo "rbln-smi: no driver" >&2; exit 1; }}
printf '{answer}\\n' "$version"
"""
_ANSWER = '{"KMD_version": "%s", "devices": [{"npu": 0, "name": "RBLN-CA12", "status": "normal", "device": "rbln0"}]}'


def lighten(tree: HostTree) -> None:
    """Put them in place of the tools of a host, and of those of the drivers that are there."""
    for name, text in (("modinfo", _MODINFO), ("modprobe", _MODPROBE)):
        itself = tree.bin / f"{name}-itself"
        if not itself.exists():
            (tree.bin / name).rename(itself)
            _write(tree.bin / name, text.format(itself=shlex.quote(str(itself))))
    for smi in tree.root.rglob("rbln-smi"):
        _write(smi, _RBLN_SMI.format(module=shlex.quote(f"{tree.root}/sys/module/rebellions"), answer=_ANSWER))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
