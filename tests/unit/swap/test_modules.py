"""Every module is unloaded after all its holders, and nothing that is not the driver's is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.host import Module
from driver_manager.domain.profile import Modules, beside, closure, unload_order, users

NAMES = ["rebellions", "rebellions_core", "rebellions_peer", "third", "fourth", "ext4"]
DRIVER = Modules(("rebellions",), ("rebellions", "rebellions_*"))


@st.composite
def loaded(draw: st.DrawFn) -> dict[str, Module]:
    """Modules whose holders come later in a drawn order, as in a live kernel: no cycles."""
    order = draw(st.permutations(NAMES))[: draw(st.integers(0, len(NAMES)))]
    return {
        name: Module(
            name, holders=tuple(draw(st.sets(st.sampled_from(order[place + 1 :])))) if order[place + 1 :] else ()
        )
        for place, name in enumerate(order)
    }


@given(loaded())
def test_the_closure_has_the_roots_all_above_them_and_no_foreign_module_below(modules: dict[str, Module]) -> None:
    found = closure(modules, DRIVER)
    assert ("rebellions" in found) is ("rebellions" in modules)
    for module in found.values():
        assert set(module.holders) <= found.keys() | (set(module.holders) - modules.keys())
    assert "ext4" not in found or is_above(modules, "rebellions", "ext4")


def is_above(modules: dict[str, Module], below: str, wanted: str) -> bool:
    holders = modules[below].holders if below in modules else ()
    return wanted in holders or any(is_above(modules, holder, wanted) for holder in holders)


def held(**holders: str) -> dict[str, Module]:
    """Modules by name, with the names of their holders in one text."""
    return {name: Module(name, holders=tuple(text.split())) for name, text in holders.items()}


ORDERED = Modules(("root",), order=("below", "root", "beside"))


@pytest.mark.parametrize(
    ("modules", "driver", "order"),
    [
        (held(rebellions="", rebellions_core="ext4 rebellions", ext4=""), DRIVER, "rebellions"),
        (held(rebellions_core="", ext4=""), DRIVER, "rebellions_core"),
        (
            held(rebellions="", rebellions_b="rebellions", rebellions_a="rebellions_b"),
            DRIVER,
            "rebellions rebellions_b rebellions_a",
        ),
        (held(root="", below="", beside="", ext4=""), ORDERED, "beside root below"),
        (held(rebellions_c="", rebellions_a="", rebellions_b=""), DRIVER, "rebellions_a rebellions_b rebellions_c"),
        (held(rebellions="rebellions_b", rebellions_b="rebellions"), DRIVER, "rebellions rebellions_b"),
    ],
    ids=["held by another", "left by a failed load", "a chain", "ordered by the profile", "names", "a cycle"],
)
def test_what_is_unloaded_and_in_which_order(modules: dict[str, Module], driver: Modules, order: str) -> None:
    assert " ".join(unload_order(closure(modules, driver), driver.order)) == order


@given(loaded(), st.permutations(NAMES), st.sampled_from([0, 4]))
def test_a_load_order_is_unloaded_backwards_but_never_a_module_before_its_holder(
    modules: dict[str, Module], load_order: list[str], count: int
) -> None:
    order = unload_order(modules, load_order[:count])
    assert sorted(order) == sorted(modules)
    for name, module in modules.items():
        assert all(order.index(holder) < order.index(name) for holder in module.holders)
    free = {name: Module(name) for name in modules}
    backwards = [name for name in reversed(load_order[:count]) if name in free]
    assert [name for name in unload_order(free, load_order[:count]) if name in backwards] == backwards


def test_users_are_what_the_reference_count_has_beyond_holders() -> None:
    for refcount, holders, count in ((3, ("a",), 2), (1, ("a",), 0), (0, ("a",), 0), (None, (), 0)):
        assert users(Module("m", refcount=refcount, holders=holders)) == count, (refcount, holders)


@given(loaded())
def test_what_stands_beside_the_roots_and_what_they_pull_in_is_everything(modules: dict[str, Module]) -> None:
    order = beside(modules, DRIVER.roots, ())
    assert not set(order) & set(DRIVER.roots)
    for name in modules:
        pulled_in = any(name == root or is_above(modules, name, root) for root in DRIVER.roots)
        assert (name in order) is not pulled_in
    for place, name in enumerate(order):
        assert not set(order[:place]) & set(modules[name].holders), "a holder cannot be loaded first"
