"""Staged drivers: the slots beside a driver root, each a whole driver tree with a record of what it is.

Owns how a slot is called, the form of its record, what makes one unusable, and which may go. Pure; their files belong
to the adapters, what a run does with them to `driver_manager.domain.swap.staged_swap`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field

from driver_manager.domain.digest import fingerprint, in_words
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several
from driver_manager.domain.wire import Fields, Form

FOLDER_END = ".slots"
RECORD = ".driver-slot.json"
"""At the top of each slot: it comes and goes with the tree."""

UNRECORDED = "unrecorded"
"""The slot of a driver whose digest nobody noted."""

MAX_NAME_CHARS = 80
MAX_BYTES = 2**63 - 1

STAGE_AGAIN = "Stage it again: `driver-manager stage` replaces a slot that does not match its record. Then run again."

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_MADE = re.compile(r"-[0-9a-f]{12}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def folder_of(root: str) -> str:
    """Where the slots of a driver root are."""
    return root.rstrip("/") + FOLDER_END


def slot_name(digest: str) -> str:
    """The file name of the slot of `digest`, another one for every digest; that of no digest where it is empty.

    A digest that is no safe file name has a fingerprint behind it, and so has one that looks as if it had.
    """
    if not digest:
        return UNRECORDED
    is_taken = digest == UNRECORDED or _MADE.search(digest)
    if _SAFE.fullmatch(digest) and len(digest) <= MAX_NAME_CHARS and not is_taken:
        return digest
    words = re.sub(r"[^A-Za-z0-9._-]", "-", digest).lstrip(".-")[:MAX_NAME_CHARS]
    return f"{words or 'slot'}-{fingerprint(digest)}"


class StagedFile(Frozen):
    """One regular file of a slot: its path in it, its size and its checksum in hexadecimal digits."""

    path: str
    size_bytes: int
    sha256: str


class SlotRecord(Frozen):
    """What a slot holds: the driver's digest ("" where nobody noted it) and version, the kernel that it is for, all
    files, and the symlinks by path with what they say.
    """

    digest: str
    kernel: str
    version: str
    files: tuple[StagedFile, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)


class SlotRecordUnreadable(ConfigError):
    """The record of a slot is not one that this version can act on."""


FORM = Form("the record of the slot", SlotRecordUnreadable, STAGE_AGAIN, is_compact=True)


def encode(record: SlotRecord) -> str:
    """The record's file: one line of JSON."""
    files = [{"path": one.path, "bytes": one.size_bytes, "sha256": one.sha256} for one in record.files]
    body = {"digest": record.digest, "kernel": record.kernel, "version": record.version}
    return FORM.write({**body, "files": files, "links": dict(record.links)}) + "\n"


def decode(text: str) -> SlotRecord:
    """The record in `text`. Raises SlotRecordUnreadable for garbage and for newer versions."""
    body = FORM.read(text)
    links = body.texts_by_name("links")
    if wrong := next((path for path in links if not _is_inside(path)), None):
        raise FORM.refused(f"links.{wrong} leads out of the slot")
    files = tuple(map(_file, body.each("files")))
    return SlotRecord(body.text("digest"), body.text("kernel"), body.text("version"), files, links)


def _file(body: Fields) -> StagedFile:
    path, checksum = body.text("path"), body.text("sha256")
    if not _is_inside(path):
        raise body.bad("path", "a path in the slot")
    if not _SHA256.fullmatch(checksum):
        raise body.bad("sha256", "64 hexadecimal digits")
    return StagedFile(path, body.whole("bytes", least=0, most=MAX_BYTES), checksum)


def _is_inside(path: str) -> bool:
    return bool(path) and not {"", ".", ".."} & set(path.split("/"))


class FoundTree(Frozen):
    """What is in a folder: sizes of the regular files in bytes, and what the symlinks say, both by path in it."""

    sizes: Mapping[str, int]
    links: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(self.sizes.values())


def why_unusable(record: SlotRecord, digest: str, kernel: str, found: FoundTree) -> str:
    """Why the slot with `record` does not serve a run that wants `digest` on `kernel`, "" where it does.

    What is in the slot beside what its record names does no harm.
    """
    if record.digest != digest:
        return f"its record is of {in_words(record.digest) or 'an unknown driver'}"
    if record.kernel != kernel:
        return f"it is for kernel {record.kernel or 'unknown'}, this one is {kernel}"
    wrong = [_difference(one.path, one.size_bytes, found.sizes) for one in record.files]
    wrong += [
        f"{path} is no longer a link to {text}" for path, text in record.links.items() if found.links.get(path) != text
    ]
    named = [text for text in wrong if text]
    return f"it is not complete: {several(named, '; ')}" if named else ""


def _difference(path: str, size_bytes: int, sizes: Mapping[str, int]) -> str:
    there = sizes.get(path)
    if there is None:
        return f"{path} is missing"
    return "" if there == size_bytes else f"{path} has {there} bytes, its record has {size_bytes}"


class StagedSlot(Frozen):
    """One slot as it is seen: `problem` says what keeps it from being used, `made_s` when it came, for the order."""

    name: str
    digest: str = ""
    version: str = ""
    kernel: str = ""
    made_s: float = 0.0
    problem: str = ""

    @property
    def text(self) -> str:
        """For people: digest and version."""
        return f"{in_words(self.digest) or self.name}, driver {self.version or '(no version)'}"


class StagedSlots(Frozen):
    """The slots beside the driver root `root`. `current` is the one that it leads to, `previous` the one it led to
    before, `wanted` the one of the wanted driver; "" where there is none.

    `leads_to` is where the root leads as a symlink, without symlinks; "" where it is none. `in_root` is a folder with
    something in it that is there instead, as its record has it, None where there is none. `obstacle`: why the root
    cannot be made to lead to a slot, with `remedy`.
    """

    root: str
    slots: tuple[StagedSlot, ...] = ()
    current: str = ""
    previous: str = ""
    wanted: str = ""
    leads_to: str = ""
    in_root: StagedSlot | None = None
    obstacle: str = ""
    remedy: str = ""

    def path(self, name: str) -> str:
        """The slot's absolute path on the host."""
        return f"{folder_of(self.root)}/{name}"

    def named(self, name: str) -> StagedSlot | None:
        """The slot, None where it is not there."""
        return next((slot for slot in self.slots if slot.name == name), None)

    def name_of(self, path: str) -> str:
        """The name of the slot at `path`, "" where that is none."""
        folder, _, name = path.rstrip("/").rpartition("/")
        return name if folder == folder_of(self.root) else ""


def removable(slots: Iterable[StagedSlot], current: str, previous: str) -> tuple[str, ...]:
    """Names of the slots that may go: all but those two and the newest of the others, a usable one where there is."""
    others = [slot for slot in slots if slot.name not in (current, previous)]
    others.sort(key=lambda slot: (not slot.problem, slot.made_s, slot.name), reverse=True)
    return tuple(sorted(slot.name for slot in others[1:]))


def free_name(name: str, taken: Iterable[str]) -> str:
    """`name`, or the first of `name-2`, `name-3`, … that nobody has."""
    known = set(taken)
    number, found = 1, name
    while found in known:
        number += 1
        found = f"{name}-{number}"
    return found
