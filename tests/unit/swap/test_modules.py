"""Every module is unloaded after all its holders, and nothing that is not the driver's is touched."""

from __future__ import annotations

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
def test_every_module_comes_after_all_its_holders(modules: dict[str, Module]) -> None:
    order = unload_order(modules, ())
    assert sorted(order) == sorted(modules)
    for name, module in modules.items():
        assert all(order.index(holder) < order.index(name) for holder in module.holders)


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


def test_our_own_module_that_somebody_else_holds_stays() -> None:
    modules = {
        "rebellions": Module("rebellions"),
        "rebellions_core": Module("rebellions_core", holders=("ext4", "rebellions")),
        "ext4": Module("ext4"),
    }
    assert set(closure(modules, DRIVER)) == {"rebellions"}


def test_what_a_failed_load_left_behind_is_found_without_its_root() -> None:
    modules = {"rebellions_core": Module("rebellions_core"), "ext4": Module("ext4")}
    assert set(closure(modules, DRIVER)) == {"rebellions_core"}


def test_a_chain_of_our_own_modules_below_the_root_is_found_to_its_end() -> None:
    modules = {
        "rebellions": Module("rebellions"),
        "rebellions_b": Module("rebellions_b", holders=("rebellions",)),
        "rebellions_a": Module("rebellions_a", holders=("rebellions_b",)),
    }
    assert unload_order(closure(modules, DRIVER), ()) == ("rebellions", "rebellions_b", "rebellions_a")


@given(loaded(), st.permutations(NAMES))
def test_a_load_order_is_unloaded_backwards_but_never_a_module_before_its_holder(
    modules: dict[str, Module], load_order: list[str]
) -> None:
    order = unload_order(modules, load_order[:4])
    assert sorted(order) == sorted(modules)
    for name, module in modules.items():
        assert all(order.index(holder) < order.index(name) for holder in module.holders)
    free = {name: Module(name) for name in modules}
    backwards = [name for name in reversed(load_order[:4]) if name in free]
    assert [name for name in unload_order(free, load_order[:4]) if name in backwards] == backwards


def test_what_the_profile_orders_is_the_drivers_without_a_pattern() -> None:
    ordered = Modules(("root",), order=("below", "root", "beside"))
    modules = {name: Module(name) for name in ("root", "below", "beside", "ext4")}
    assert unload_order(closure(modules, ordered), ordered.order) == ("beside", "root", "below")


def test_names_alone_decide_between_equals() -> None:
    assert unload_order({name: Module(name) for name in ("c", "a", "b")}, ()) == ("a", "b", "c")


def test_an_impossible_cycle_ends() -> None:
    assert unload_order({"a": Module("a", holders=("b",)), "b": Module("b", holders=("a",))}, ()) == ("a", "b")


def test_users_are_what_the_reference_count_has_beyond_holders() -> None:
    assert users(Module("m", refcount=3, holders=("a",))) == 2
    assert users(Module("m", refcount=1, holders=("a",))) == 0
    assert users(Module("m", refcount=0, holders=("a",))) == 0
    assert users(Module("m", refcount=None)) == 0


@given(loaded())
def test_what_stands_beside_the_roots_and_what_they_pull_in_is_everything(modules: dict[str, Module]) -> None:
    order = beside(modules, DRIVER.roots, ())
    assert not set(order) & set(DRIVER.roots)
    for name in modules:
        pulled_in = name in DRIVER.roots or is_below_a_root(modules, name)
        assert (name in order) is not pulled_in
    for place, name in enumerate(order):
        assert not set(order[:place]) & set(modules[name].holders), "a holder cannot be loaded first"


def is_below_a_root(modules: dict[str, Module], name: str) -> bool:
    holders = modules[name].holders
    return any(holder in DRIVER.roots or is_below_a_root(modules, holder) for holder in holders if holder in modules)
