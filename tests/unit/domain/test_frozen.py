"""A `Frozen` is what a frozen dataclass is, found out beside one of the same fields."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.records import Frozen

T = TypeVar("T")


class Ours(Frozen):
    """A record of every kind of field."""

    name: str
    size: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    stamp: str = field(default="", compare=False)
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class Theirs:
    """The same by dataclasses."""

    name: str
    size: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    stamp: str = field(default="", compare=False)
    secret: str = field(default="", repr=False)


class Alike(Frozen):
    """The fields of another class."""

    name: str
    size: float = 0.0


class Derived(Alike):
    """A further field."""

    more: tuple[int, ...] = ()


class Empty(Frozen):
    """No field."""


class Other(Frozen):
    """No field, too."""


class Typed(Frozen, Generic[T]):
    """A value of a type that is given later."""

    value: T


class Kind(Frozen, ABC):
    """A base that nobody can make."""

    @abstractmethod
    def describe(self) -> str:
        """What it is."""


class Concrete(Kind):
    """What can be made."""

    size: int

    def describe(self) -> str:
        return f"of size {self.size}"


VALUES = st.fixed_dictionaries(
    {"name": st.sampled_from(["", "a", "b"])},
    optional={
        "size": st.sampled_from([0.0, -0.0, 1.0, True]),
        "labels": st.sampled_from([{}, {"a": "b"}]),
        "stamp": st.sampled_from(["", "now"]),
        "secret": st.sampled_from(["", "told"]),
    },
)


@given(one=VALUES, other=VALUES)
def test_two_are_equal_where_two_dataclasses_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (Ours(**one) == Ours(**other)) is (Theirs(**one) == Theirs(**other))
    assert (Ours(**one) != Ours(**other)) is (Theirs(**one) != Theirs(**other))


@given(values=VALUES)
def test_it_looks_like_a_dataclass(values: dict[str, Any]) -> None:
    ours, theirs = Ours(**values), Theirs(**values)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert vars(ours) == vars(theirs)


def test_what_is_equal_has_one_hash_and_what_is_not_has_another() -> None:
    one = Alike("a", 1.0)
    assert hash(one) == hash(Alike("a", 1.0)) != hash(Alike("b", 1.0))
    assert len({Empty(), Empty(), Other(), Alike("a"), Alike("a", 0.0), Derived("a")}) == 4


def test_the_hash_does_not_know_what_is_not_compared() -> None:
    class Seen(Frozen):
        """Its place, and when it was seen."""

        place: str
        at: float = field(default=0.0, compare=False)

    assert hash(Seen("here", 1.0)) == hash(Seen("here", 2.0))
    assert Seen("here", 1.0) == Seen("here", 2.0)


def test_what_cannot_be_hashed_raises_type_error() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ours("a"))


def test_a_field_that_is_not_equal_to_itself_is_the_same() -> None:
    """As in dataclasses up to Python 3.12, on every Python: later ones compare field by field, not as tuples."""
    size = float("nan")
    assert Alike("a", size) == Alike("a", size)
    assert Alike("a", size) != Alike("a", float("nan"))


def test_another_class_is_never_equal() -> None:
    assert Alike("a") != Derived("a")
    assert Derived("a") != Alike("a")
    assert Empty() != Other()  # type: ignore[comparison-overlap]  # on purpose
    assert Alike("a").__eq__("a") is NotImplemented  # whoever is beside it may know better


@pytest.mark.parametrize("kind", [Ours, Theirs])
@pytest.mark.parametrize(
    "change",
    [
        lambda one: setattr(one, "name", "b"),
        lambda one: setattr(one, "size", 2.0),
        lambda one: setattr(one, "labels", {}),
        lambda one: setattr(one, "none_such", 1),
        lambda one: delattr(one, "name"),
        lambda one: delattr(one, "size"),
    ],
    ids=["a value", "a default", "a made default", "no field", "deleted", "a deleted default"],
)
def test_it_cannot_be_changed(kind: type[Ours | Theirs], change: Callable[[Any], None]) -> None:
    one = kind("a")
    before = dict(vars(one))
    with pytest.raises(FrozenInstanceError, match=r"cannot (assign to|delete) field '\w+'"):
        change(one)
    assert vars(one) == before


def test_the_type_checker_knows_that_it_cannot_be_changed() -> None:
    """Each of its complaints is expected below, so it would complain of one that does not come."""
    one = Alike("a")
    with pytest.raises(FrozenInstanceError):
        one.name = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        one.none_such = 1  # type: ignore[attr-defined]
    assert one != "a"  # type: ignore[comparison-overlap]


def test_a_change_is_a_copy() -> None:
    one = Ours("a", stamp="then")
    assert dataclasses.replace(one, name="b") == Ours("b")
    assert dataclasses.replace(one, name="b").stamp == "then"
    assert one.name == "a"
    with pytest.raises(TypeError, match="none_such"):
        dataclasses.replace(one, none_such=1)  # type: ignore[call-arg]  # on purpose


@pytest.mark.parametrize("arguments", [(), ("a", 1.0, {}, "", "", "one too many")], ids=["too few", "too many"])
def test_what_does_not_fit_cannot_be_made(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="argument"):
        Ours(*arguments)


def test_no_two_share_a_made_default() -> None:
    assert Ours("a").labels is not Ours("a").labels


def by_pickle(one: Frozen) -> Any:
    """`one` as another process gets it."""
    return pickle.loads(pickle.dumps(one))  # noqa: S301  # what this test wrote


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, by_pickle])
@pytest.mark.parametrize("one", [Ours("a", 2.0, {"k": "v"}, "now", "told"), Derived("a", more=(1,)), Empty()])
def test_it_can_be_copied_and_handed_to_another_process(again: Callable[[Any], Any], one: Frozen) -> None:
    assert again(one) == one
    assert vars(again(one)) == vars(one)
    with pytest.raises(FrozenInstanceError):
        again(one).name = "b"


def test_a_derived_one_has_the_fields_of_both() -> None:
    assert Derived("a", 1.0, (2,)) == Derived(more=(2,), size=1.0, name="a")
    assert repr(Derived("a")) == "Derived(name='a', size=0.0, more=())"
    match Derived("a", 1.0, (2,)):
        case Derived(name, size, more):
            assert (name, size, more) == ("a", 1.0, (2,))


def test_only_its_fields_are_annotations() -> None:
    assert list(typing.get_type_hints(Derived)) == ["name", "size", "more"]
    assert dataclasses.is_dataclass(Derived)


def test_it_may_be_generic() -> None:
    assert Typed[int](1) == Typed(1)
    assert repr(Typed("a")) == "Typed(value='a')"


def test_it_may_be_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Kind()  # type: ignore[abstract]  # on purpose
    assert Concrete(3).describe() == "of size 3"
