"""The symbols a module needs are the undefined global ones of its ELF file; anything else reads as unknown."""

from __future__ import annotations

import gzip
import lzma
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host.modules import needed_symbols
from tests.support.fakes.elf_files import (
    GLOBAL,
    MAGIC,
    MODULE,
    SECTION_BYTES,
    elf,
)

NEEDED = frozenset({"printk", "rebellions_core_open"})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.ko", MODULE),
        ("m.ko.gz", gzip.compress(MODULE)),
        ("m.ko.xz", lzma.compress(MODULE)),
    ],
)
def test_undefined_global_symbols_are_needed(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert needed_symbols(tmp_path / name) == NEEDED


def test_a_module_that_needs_nothing_is_not_unknown(tmp_path: Path) -> None:
    (tmp_path / "m.ko").write_bytes(elf(("init_module", GLOBAL, 1)))
    assert needed_symbols(tmp_path / "m.ko") == frozenset()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.ko", b""),
        ("m.ko", b"\x7fELF"),
        ("m.ko", b"\x7fELF\x01\x01" + bytes(200)),
        ("m.ko", b"\x7fELF\x02\x02" + bytes(200)),
        ("m.ko", b"\x28\xb5\x2f\xfd" + bytes(20)),
        ("m.ko", MODULE[:-1]),
        ("m.ko.gz", b"no gzip"),
        ("m.ko.gz", gzip.compress(MODULE)[:-9]),
        ("m.ko.xz", b"no xz"),
        ("m.ko.xz", lzma.compress(MODULE)[:-9]),
    ],
)
def test_what_is_no_such_file_is_unknown(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert needed_symbols(tmp_path / name) is None


def test_no_file_and_a_folder_are_unknown(tmp_path: Path) -> None:
    assert needed_symbols(tmp_path / "absent.ko") is None
    assert needed_symbols(tmp_path) is None


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elf") / "m.ko"


@given(st.binary(max_size=400))
def test_no_garbage_breaks_the_reader(file: Path, content: bytes) -> None:
    for head in (b"", MAGIC):
        file.write_bytes(head + content)
        assert needed_symbols(file) is None or head


@given(st.integers(0, len(MODULE) - 1), st.binary(min_size=1, max_size=8))
def test_no_damage_to_a_module_breaks_the_reader(file: Path, at: int, damage: bytes) -> None:
    file.write_bytes(MODULE[:at] + damage + MODULE[at + len(damage) :])
    found = needed_symbols(file)
    assert found is None or isinstance(found, frozenset)


@pytest.mark.parametrize(
    ("where", "offset"),
    [
        ("sections", 2**40),
        ("symbols", 2**40),
        ("names", 2**40),
        ("names", 2**63),
        ("names", 2**64 - 1),
        ("sections", 2**63),
        ("sections", 2**64 - 1),
        ("symbols", 2**63),
    ],
)
def test_an_offset_beyond_any_file_is_unknown(file: Path, where: str, offset: int) -> None:
    sections_at = len(MODULE) - 3 * SECTION_BYTES
    at = {"sections": 0x28, "symbols": sections_at + SECTION_BYTES + 24, "names": sections_at + 2 * SECTION_BYTES + 24}
    content = bytearray(MODULE)
    struct.pack_into("<Q", content, at[where], offset)
    file.write_bytes(content)
    assert needed_symbols(file) is None
