"""A key of routes.yaml is defined once: as a field of a class of the snapshot.

The field says its name, type and default; `setting` adds its help. Validation, JSON schema, reference page and the
values of the snapshot are all read from there. Three cases:

- `idle: DurationOrNone = setting(120.0, "...")`: a key whose value the snapshot keeps.
- `nodes: tuple[str, ...] = setting((), "...", key="node", kind=OneOrMany)`: a key that the file calls otherwise, or
  writes as another kind of value. A key without a default (one that the snapshot needs) is
  `alias: Text = field(metadata=about("..."))`.
- `listen: ClassVar[Listen] = in_file("0.0.0.0:4000", "...")`: a key of which the snapshot keeps something else, or
  nothing. Fields without help (`name`, `slots_assumed`) are not keys of the file.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, field
from functools import cache
from typing import Any, ClassVar, TypeVar

from gateway.config.kinds import Kind, as_written

T = TypeVar("T")
_ABOUT = "setting"


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """What the definition of a key says beyond the field itself."""

    help: str
    key: str | None
    kind: Any
    default: Any
    decided: bool
    names: bool


def about(
    help: str,
    *,
    key: str | None = None,
    kind: Any = None,
    default: Any = MISSING,
    decided: bool = False,
    names: bool = False,
) -> dict[str, KeyDescription]:
    """The metadata of a dataclass field that is a key of routes.yaml.

    `key` is its name in the file and `kind` its type there, where they differ from the field's. `decided`: what holds
    without the key depends on other keys, as `help` says, so no default is shown. `names`: the value names entries of
    the file, so a log may show it although it is text.
    """
    return {_ABOUT: KeyDescription(help, key, kind, default, decided, names)}


def setting(default: T, help: str = "", **more: Any) -> T:
    """A field with this default that is a key of routes.yaml; `more` as in `about`."""
    metadata = about(help, **more)
    if type(default).__hash__ is None:  # a mapping: dataclasses take no mutable default
        return field(default_factory=lambda: copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def in_file(default: Any, help: str = "", **more: Any) -> Any:
    """A key of the file that is no field of the snapshot; for class variables, which then have no value."""
    return field(metadata=about(help, default=default, **more))


@dataclass(frozen=True, slots=True)
class Setting:
    """One key.

    `field` is the name of its field in the snapshot; None = the snapshot keeps no field for it. `hint` is its type in
    the file (with `Kind`s), `section` the class whose keys stand below it (`named`: below names that the operator
    chooses).
    """

    key: str
    field: str | None
    hint: Any
    default: Any
    about: KeyDescription

    @property
    def help(self) -> str:
        """What the key means; for a section without words of its own, what its class says."""
        return self.about.help or (summary(self.section) if self.section is not None else "")

    @property
    def section(self) -> type | None:
        return section_in(self.hint)

    @property
    def named(self) -> bool:
        return typing.get_origin(self.hint) is Mapping

    @property
    def kind(self) -> Kind | None:
        """None for sections and fixed lists of words."""
        return kind_in(self.hint)

    @property
    def shown_default(self) -> str:
        """The default as the file would have it; "" where `help` says what holds without the key."""
        if self.default is MISSING or self.section is not None or self.about.decided:
            return ""
        return as_written(self.default) if self.kind is None else self.kind.write(self.default)

    @property
    def private(self) -> bool:
        """Whether no log may show the value: it is text of the operator's, in which a variable may stand."""
        return self.kind is not None and self.kind.private and not self.about.names


@cache
def settings_of(section: type) -> Mapping[str, Setting]:
    """The keys that a class of the snapshot defines, in its order, by their name in the file."""
    hints = typing.get_type_hints(section, include_extras=True)
    found = {}
    # Not `dataclasses.fields`, which leaves class variables out.
    for one in vars(section)["__dataclass_fields__"].values():
        described: KeyDescription | None = one.metadata.get(_ABOUT)
        if described is None:
            continue
        hint, kept = hints[one.name], True
        if typing.get_origin(hint) is ClassVar:
            (hint,), kept = typing.get_args(hint), False
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        found[described.key or one.name] = Setting(
            key=described.key or one.name,
            field=one.name if kept else None,
            hint=hint if described.kind is None else described.kind,
            default=default if kept else described.default,
            about=described,
        )
    return found


def summary(section: type) -> str:
    """The first paragraph of what a class says about itself."""
    return (section.__doc__ or "").partition("\n\n")[0]


def is_section(value: Any) -> bool:
    """Whether `value` is a class that defines keys."""
    return isinstance(value, type) and bool(getattr(value, "__dataclass_fields__", None)) and bool(settings_of(value))


def section_in(hint: Any) -> type | None:
    """The class that defines keys inside a type: `Price | None`, `Mapping[str, Backend]`."""
    if is_section(hint):
        return typing.cast(type, hint)
    return next((found for inner in typing.get_args(hint) if (found := section_in(inner))), None)


def kind_in(hint: Any) -> Kind | None:
    """The kind of `Text`, and of `Text | None`."""
    kinds = (extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Kind))
    return next(kinds, None) or next((kind for inner in members(hint) if (kind := kind_in(inner))), None)


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union without None, which stands for a key that is not written."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return ()
    return tuple(inner for inner in typing.get_args(hint) if inner is not types.NoneType)


def walk(section: type, prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Every key below `section` with its path, sections themselves included: `backends.*.timeouts.idle`."""
    for key, found in settings_of(section).items():
        yield prefix + key, found
        if found.section is not None:
            yield from walk(found.section, f"{prefix}{key}.*." if found.named else f"{prefix}{key}.")
