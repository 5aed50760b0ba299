"""The stand-in kernel tells loads of a driver apart as a real one does (tests/support/kernel has that one)."""

from __future__ import annotations

from pathlib import Path

from driver_manager.adapters.host.notes import load_text
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import HostTree
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.host_documents import roots_of

LOADS = 20


def test_no_two_loads_of_a_driver_are_taken_for_one(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host", tmp_path / "bin", PROFILE)
    tree.add_driver("/opt/driver", "1.0")
    roots, seen = roots_of(tree.root), list[str]()
    for _ in range(LOADS):
        assert load_text(roots, PROFILE.modules) == ""
        tree.load("/opt/driver")
        seen.append(load_text(roots, PROFILE.modules))
        for name in ("rebellions", "rebellions_core"):
            assert fake_tools.rmmod(tree.root, [name]) == 0
    assert len(set(seen)) == LOADS
