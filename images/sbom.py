"""Prints what an image consists of as CycloneDX 1.5 JSON: `sbom.py --locks <requirements> [--root <image root>]`.

Debian packages come from dpkg's status, Python packages from what is installed, which must be what the locks name.
Standard library only: it runs while the image is built. The same image gives the same bytes.
"""

from __future__ import annotations

import argparse
import email.parser
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

NAME = "driver-manager"
SITE_PACKAGES = "opt/driver-manager/lib/python3*/site-packages"
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def debian_packages(root: Path) -> Iterator[dict[str, Any]]:
    """A component for each installed Debian package."""
    release = dict(line.split("=", 1) for line in (root / "etc/os-release").read_text().splitlines() if "=" in line)
    distribution, number = (release[key].strip('"') for key in ("ID", "VERSION_ID"))
    for stanza in (root / "var/lib/dpkg/status").read_text().strip().split("\n\n"):
        fields = email.parser.HeaderParser().parsestr(stanza)
        if not fields["Status"].endswith(" installed"):
            continue
        name, version, architecture = (str(fields[key]) for key in ("Package", "Version", "Architecture"))
        where = f"arch={architecture}&distro={distribution}-{number}"
        yield _component(name, version, f"pkg:deb/{distribution}/{_quoted(name, version)}?{where}")


def python_packages(root: Path, locked: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A component for each installed Python package but our own. Raises ValueError for one that no lock names so."""
    for metadata in sorted(root.glob(f"{SITE_PACKAGES}/*.dist-info/METADATA")):
        fields = email.parser.HeaderParser().parsestr(metadata.read_text())
        name, version = _normal(fields["Name"]), str(fields["Version"])
        if name == NAME:
            continue
        if locked.get(name) != version:
            raise ValueError(f"{name} {version} is installed, and the locks say {locked.get(name, 'nothing of it')}")
        component = _component(name, version, f"pkg:pypi/{_quoted(name, version)}")
        if fields["License-Expression"]:
            component["licenses"] = [{"expression": str(fields["License-Expression"])}]
        yield component


def own_version(root: Path) -> str:
    """The version of driver-manager in the image. Raises ValueError where it is not there."""
    for metadata in root.glob(f"{SITE_PACKAGES}/driver_manager-*.dist-info/METADATA"):
        return str(email.parser.HeaderParser().parsestr(metadata.read_text())["Version"])
    raise ValueError(f"{NAME} is not in {root}")


def locked_versions(folder: Path) -> dict[str, str]:
    """The version of each package in the lock that the image is built from."""
    text = (folder / "runtime.lock").read_text()
    return {_normal(name): version for name, version in LOCKED.findall(text)}


def bill(root: Path, locks: Path, epoch_s: int) -> dict[str, Any]:
    """The document, with a serial number that its content gives. Raises ValueError, OSError."""
    components = [*debian_packages(root), *python_packages(root, locked_versions(locks))]
    version = own_version(root)
    own = {"type": "container", "bom-ref": NAME, "name": NAME, "version": version}
    content = json.dumps([own, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "version": 1,
        "metadata": {"timestamp": datetime.fromtimestamp(epoch_s, UTC).isoformat(), "component": own},
        "components": components,
        "dependencies": [{"ref": NAME, "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _quoted(name: str, version: str) -> str:
    """Name and version as a package URL has them: colons as they are, anything else that is reserved encoded."""
    return f"{quote(name, safe=':')}@{quote(version, safe=':')}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """0, or 1 with what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locks", type=Path, required=True, help="folder with runtime.lock")
    parser.add_argument("--root", type=Path, default=Path("/"), help="the image's root (default: /)")
    asked = parser.parse_args()
    try:
        document = bill(asked.root, asked.locks, int(os.environ.get("SOURCE_DATE_EPOCH") or 0))
    except (OSError, ValueError) as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
