"""`Frozen`, the base of immutable records: as a frozen dataclass, created in a quarter of the time.

A run that is over in less than a second makes some 150 classes of records first. For a frozen dataclass six methods are
compiled, which was a third of the time that all imports took. Of a class that derives from this one only `__init__` is
compiled; the other five methods are written once, here, and look up what the fields are. An instance is 64 bytes larger
and slower to make, though: a record that there is one of for each node of a fleet is a frozen dataclass with slots.
"""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Frozen:
    """What derives from it is as `@dataclass(frozen=True)` would make it, also for the type checker.

    Equal are what is equal as tuples, on every Python. A field with `compare=False` counts neither in `==` nor in the
    hash; one with `repr=False` is not shown. Raises `dataclasses.FrozenInstanceError` where a field that has its value,
    or what is no field, is assigned or deleted.
    """

    if TYPE_CHECKING:  # nothing that `typing.get_type_hints` would find among the fields
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
        _compared: ClassVar[attrgetter[Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(repr=False, eq=False)(cls)
        # With the class it gives a tuple for any number of fields.
        cls._compared = attrgetter("__class__", *(one.name for one in fields(cls) if one.compare))

    if not TYPE_CHECKING:  # or it would take these for rules of their own, and check no comparison and no assignment

        def __eq__(self, other: object) -> bool:
            if other.__class__ is not self.__class__:
                return NotImplemented
            return bool(self._compared(self) == self._compared(other))

        def __hash__(self) -> int:
            return hash(self._compared(self))

        def __repr__(self) -> str:
            shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
            return f"{type(self).__qualname__}({', '.join(shown)})"

        def __setattr__(self, name: str, value: object) -> None:
            if name in self.__dict__ or name not in self.__dataclass_fields__:
                raise FrozenInstanceError(f"cannot assign to field {name!r}")
            self.__dict__[name] = value  # by `__init__`, and the first time

        def __delattr__(self, name: str) -> NoReturn:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
