"""Owns stand-ins for what vendors publish: a Debian package and a self-unpacking .run, each with a given tree.

Must not import the product.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_S = 150.0

_HEAD = b"""\
#!/bin/sh
# As makeself makes them: --noexec and --extract=DIR unpack, anything else would run the installer.
for word; do
    case $word in
        --extract=*) to=${word#--extract=} ;;
        --noexec) noexec=1 ;;
    esac
done
[ "${noexec:-}" ] || { echo "the installer would run here" >&2; exit 3; }
mkdir -p "$to" && tail -n +12 "$0" | tar -xzf - -C "$to"
exit
"""


def write_deb(folder: Path, name: str, version: str, tree: Mapping[str, bytes]) -> Path:
    """The only .deb of a folder; its script after the installation fails, as it must never run."""
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / "root"
    for path, content in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    (root / "DEBIAN").mkdir(parents=True)
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: tests\nDescription: a stand-in\n"
    (root / "DEBIAN/control").write_text(control)
    script = root / "DEBIAN/postinst"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    made = folder / f"{name}_{version}_all.deb"
    argv = ["dpkg-deb", "--root-owner-group", "--build", str(root), str(made)]
    subprocess.run(argv, check=True, capture_output=True, timeout=TIMEOUT_S)
    return made


def run_file(tree: Mapping[str, bytes]) -> bytes:
    """The content of a .run that unpacks into this tree."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, content in tree.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    assert _HEAD.count(b"\n") == 11, "its archive begins at line 12"
    return _HEAD + data.getvalue()
