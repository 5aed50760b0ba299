"""Stand-ins of the tools that change the host, in sh: as quick as kmod's own, so that a run's time is the product's.

The sandbox's are Python programs of 50 ms each, nine in a run. These know the two modules of the bench's one driver.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.light_tools import lighten

RMMOD = """\
#!/bin/sh
for name; do :; done
read -r count < {modules}/"$name"/refcnt || exit 1
[ "$count" = 0 ] || {{ echo "rmmod: ERROR: Module $name is in use" >&2; exit 1; }}
if [ "$name" = rebellions ]; then
    rm {modules}/rebellions_core/holders/rebellions {device}
    echo 0 > {modules}/rebellions_core/refcnt
fi
mv {modules}/"$name" {modules}/../.gone && exec rm -r {modules}/../.gone
"""
MODPROBE = """\
#!/bin/sh
case $1 in --dump-modversions | --show-depends) exit 0 ;; esac
[ -d {modules}/rebellions ] && exit 0
for name in rebellions_core rebellions; do
    mkdir -p {modules}/$name/holders
    echo 0 > {modules}/$name/refcnt
    echo {version} > {modules}/$name/version
    echo live > {modules}/$name/initstate
done
: > {modules}/rebellions_core/holders/rebellions
echo 1 > {modules}/rebellions_core/refcnt
: > {device}
"""


def quicken(tree: HostTree, version: str) -> None:
    """Put them in place of a host's tools; `version` is what modprobe loads."""
    lighten(tree)
    where = {"modules": tree.root / "sys/module", "device": tree.root / "dev/rbln0", "version": version}
    quoted = {name: shlex.quote(str(value)) for name, value in where.items()}
    for name, text in (("rmmod", RMMOD), ("modprobe", MODPROBE)):
        _write(tree.bin / name, text.format(**quoted))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
