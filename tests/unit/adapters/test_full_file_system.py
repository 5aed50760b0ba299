"""A file system that fills up, or forbids writing, in the middle of a write: the old file stays whole, nothing is left.

On a simulated file system; tests/system/kernel/guest_tests/test_host_files_in_guest.py does the same on a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyfakefs import helpers
from pyfakefs.fake_filesystem import FakeFilesystem

from driver_manager.adapters.host.health import HostMarks
from driver_manager.adapters.host.system import Ownership
from driver_manager.domain.errors import ConfigError, OwnedElsewhere
from driver_manager.domain.host import Marker
from driver_manager.domain.journal import Owner
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_documents import DOCUMENTS, PATHS, PROFILE, HostDocument, roots_of

HOST = Path("/host")
ROOTS = roots_of(HOST)
NEW = "the new one" * 400
ROOM_BYTES = 1_000
FIRST, SECOND = Owner(pid=7, start_ticks=1, boot_id="b"), Owner(pid=8, start_ticks=2, boot_id=NEW)
FOLDERS = sorted({document.path.rpartition("/")[0] for document in DOCUMENTS.values()})


@pytest.fixture
def host(fs: FakeFilesystem) -> Iterator[FakeFilesystem]:
    """A host with the vendor's folders, and a process of its own."""
    for folder in (*FOLDERS, "/proc/1", "/sys/module", "/dev", "/sys/bus/pci/devices"):
        fs.create_dir(f"{HOST}{folder}")
    yield fs
    helpers.reset_ids()


def nearly_fill(fs: FakeFilesystem) -> None:
    """Leave room for a file, and less than `NEW` needs."""
    fs.set_disk_usage(fs.get_disk_usage().used + ROOM_BYTES)


def forbid(fs: FakeFilesystem) -> None:
    """Let nobody write into the folders that are there."""
    for folder in FOLDERS:
        fs.chmod(f"{HOST}{folder}", 0o555)
    helpers.set_uid(1000)


def names(path: str) -> list[str]:
    """What is in the folder of a host path."""
    return sorted(entry.name for entry in Path(f"{HOST}{path}").parent.iterdir())


def content(fs: FakeFilesystem, path: str) -> str:
    """What is in the file of a host path, whoever may read it."""
    return str(fs.get_object(f"{HOST}{path}").contents)


@pytest.mark.parametrize(
    ("ruin", "why"),
    [(nearly_fill, "No space left on device"), (forbid, "Permission denied")],
    ids=["full", "forbidden"],
)
@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_the_old_file_stays_whole_and_nothing_else_is_left(
    host: FakeFilesystem, document: HostDocument, ruin: Callable[[FakeFilesystem], None], why: str
) -> None:
    document.write(ROOTS, "the old one")
    before, beside = content(host, document.path), names(document.path)
    assert "the old one" in before
    ruin(host)
    with pytest.raises(ConfigError, match=f"cannot write {document.path} on the host: {why}") as caught:
        document.write(ROOTS, NEW)
    assert document.path.rpartition("/")[0] in caught.value.remedy
    assert (content(host, document.path), names(document.path)) == (before, beside)


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_with_room_the_new_file_takes_the_old_ones_place(host: FakeFilesystem, document: HostDocument) -> None:
    document.write(ROOTS, "the old one")
    document.write(ROOTS, NEW)
    assert "the new one" in content(host, document.path)


def test_a_request_for_recovery_that_finds_no_room_leaves_no_marker(host: FakeFilesystem) -> None:
    nearly_fill(host)
    with pytest.raises(ConfigError, match=f"cannot write {PATHS.reboot_marker} on the host: No space left on device"):
        HostMarks(ROOTS, PROFILE, FakeClock()).request_recovery(Marker("recovery", NEW, writer="health-watch"))
    assert PATHS.reboot_marker.rpartition("/")[2] not in names(PATHS.reboot_marker)
    assert [name for name in names(PATHS.reboot_marker) if name.startswith(".")] == []


def test_an_owner_that_cannot_be_noted_takes_the_note_of_the_one_before_away(host: FakeFilesystem) -> None:
    ownership = Ownership(ROOTS.files(), PATHS, FakeClock())
    with ownership.turn() as note:
        assert note(FIRST)
    nearly_fill(host)
    with ownership.turn() as note:
        assert not note(SECOND)
    assert not Path(f"{HOST}{PATHS.owner_note}").exists()
    assert [name for name in names(PATHS.owner_note) if name.startswith(".")] == []
    for owner in (FIRST, SECOND):
        with pytest.raises(OwnedElsewhere), ownership.owned(owner):
            pytest.fail("nobody is noted, so nobody may go on")
