"""The bill of materials of an image: whole, true to the locks, the same for the same image, of the standard's form."""

from __future__ import annotations

from pathlib import Path

import pytest

from images import sbom
from tests.support.image.bom_form import refuse_malformed

pytestmark = pytest.mark.shares(3)

PACKAGES = (
    ("kmod", "install ok installed", "amd64", "30+20221128-1"),
    ("gone", "deinstall ok config-files", "amd64", "1"),
    ("libstdc++6", "install ok installed", "amd64", "1:12.2.0-14~x"),
    ("tzdata", "install ok installed", "all", "2025b-0+deb12u2\nDescription: zones\n of time"),
)
STATUS = "\n".join("Package: {}\nStatus: {}\nArchitecture: {}\nVersion: {}\n".format(*one) for one in PACKAGES)
LOCKS = Path("requirements")
EPOCH_S = 1_700_000_000


def _install(root: Path, name: str, version: str, license_expression: str = "") -> None:
    folder = root / f"opt/driver-manager/lib/python3.11/site-packages/{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    extra = f"License-Expression: {license_expression}\n" if license_expression else ""
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{extra}\nText\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image's root with two Debian packages, one that was removed, and what the locks name."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    locked = sbom.locked_versions(LOCKS)
    _install(tmp_path, "driver_manager", "0.1.0")
    _install(tmp_path, "typing_extensions", locked["typing-extensions"], "PSF-2.0")
    _install(tmp_path, "psutil", locked["psutil"])
    return tmp_path


@pytest.mark.submission
def test_it_names_every_package_and_is_of_the_standards_form(root: Path) -> None:
    document = sbom.bill(root, LOCKS, EPOCH_S)
    refuse_malformed(document)
    locked = sbom.locked_versions(LOCKS)
    assert [component["purl"] for component in document["components"]] == [
        "pkg:deb/debian/kmod@30%2B20221128-1?arch=amd64&distro=debian-12",
        "pkg:deb/debian/libstdc%2B%2B6@1:12.2.0-14~x?arch=amd64&distro=debian-12",
        "pkg:deb/debian/tzdata@2025b-0%2Bdeb12u2?arch=all&distro=debian-12",
        f"pkg:pypi/psutil@{locked['psutil']}",
        f"pkg:pypi/typing-extensions@{locked['typing-extensions']}",
    ]
    assert document["components"][-1]["licenses"] == [{"expression": "PSF-2.0"}]
    assert document["metadata"]["component"]["version"] == "0.1.0"
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert sbom.bill(root, LOCKS, EPOCH_S) == document, "the same image gives the same"
    (root / "var/lib/dpkg/status").write_text(STATUS.replace("30+20221128-1", "31"))
    assert sbom.bill(root, LOCKS, EPOCH_S)["serialNumber"] != document["serialNumber"]


@pytest.mark.parametrize(("name", "version", "expected"), [("click", "0.0.1", r"\d"), ("evil", "1", "nothing of it")])
def test_what_no_lock_names_so_is_refused(root: Path, name: str, version: str, expected: str) -> None:
    _install(root, name, version)
    with pytest.raises(ValueError, match=f"{name} {version} is installed, and the locks say {expected}"):
        sbom.bill(root, LOCKS, EPOCH_S)


def test_an_image_without_the_program_is_refused(root: Path) -> None:
    (program,) = root.glob(f"{sbom.SITE_PACKAGES}/driver_manager-*/METADATA")
    program.unlink()
    with pytest.raises(ValueError, match="driver-manager is not in"):
        sbom.bill(root, LOCKS, EPOCH_S)
