"""A real file system of a few KiB that fills up, or turns read-only, under the files that the programs keep."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.host.system import Ownership
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.journal import Owner
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_documents import DOCUMENTS, PATHS, HostDocument, roots_of
from tests.support.kernel.guest_fixtures import COMMAND_TIMEOUT_S

pytestmark = [pytest.mark.usefixtures("guest_kernel"), pytest.mark.release]

NEW = "the new one" * 1_000
PAGE_BYTES = 4096


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    for folder in ("proc/1", "sys/module", "dev", "run", "var"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("run", "var"):
        mount("-t", "tmpfs", "-o", "size=32k", "tmpfs", str(tmp_path / folder))
    yield tmp_path
    for folder in ("run", "var"):
        subprocess.run(["umount", str(tmp_path / folder)], timeout=COMMAND_TIMEOUT_S, check=True)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], timeout=COMMAND_TIMEOUT_S, check=True)


def fill(folder: Path) -> None:
    """Leave one page: what is longer begins to be written, and is not."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * PAGE_BYTES) == PAGE_BYTES:
                pass
        except OSError:
            pass
        file.truncate(file.tell() // PAGE_BYTES * PAGE_BYTES - PAGE_BYTES)


def forbid(folder: Path) -> None:
    mount("-o", "remount,ro", str(next(one for one in (folder, *folder.parents) if one.is_mount())))


@pytest.mark.parametrize(
    ("ruin", "why"), [(fill, "No space left on device"), (forbid, "Read-only file system")], ids=["full", "read-only"]
)
@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_the_old_file_stays_whole_and_nothing_else_is_left(
    host: Path, document: HostDocument, ruin: object, why: str
) -> None:
    assert callable(ruin)
    file = host / document.path.removeprefix("/")
    document.write(roots_of(host), "the old one")
    before = file.read_text()
    assert "the old one" in before
    ruin(file.parent)
    beside = sorted(file.parent.iterdir())
    with pytest.raises(ConfigError, match=f"cannot write {document.path} on the host: {why}"):
        document.write(roots_of(host), NEW)
    assert (file.read_text(), sorted(file.parent.iterdir())) == (before, beside)


def test_an_owner_that_cannot_be_noted_takes_the_note_of_the_one_before_away(host: Path) -> None:
    note = host / PATHS.owner_note.removeprefix("/")
    ownership = Ownership(roots_of(host).files(), PATHS, FakeClock())
    with ownership.turn() as noted:
        assert noted(Owner(pid=7, start_ticks=1, boot_id="b"))
    fill(note.parent)
    beside = {*note.parent.iterdir()} - {note}
    with ownership.turn() as noted:
        assert not noted(Owner(pid=8, start_ticks=2, boot_id=NEW))
    assert {*note.parent.iterdir()} == beside
