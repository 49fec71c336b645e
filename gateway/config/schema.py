"""The pydantic models that check routes.yaml, and the JSON schema for editors. Both are made from the definitions in
`snapshot.py`.

pydantic finds every mistake of a file at once, each with its path, and writes the JSON schema; the values that the
gateway works with are the frozen dataclasses of the snapshot. The models hold no defaults: what is not written is not
there, and every key may be left out as far as the models go. What must be there, and what fits together, is decided
where names are known (`resolve.py`).
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    create_model,
)

from gateway.config.problems import Path, Report
from gateway.config.setting import Setting, is_section, kind_in, members, settings_of, summary, walk
from gateway.config.snapshot import RoutesFile
from gateway.config.suggest import for_unknown_key

T = TypeVar("T")


class Section(BaseModel):
    """What the file says in one section, by the names of its keys: an attribute is None when its key is not written
    (sections with nothing but optional keys are empty instead). Unknown keys are errors; nothing is converted
    silently."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True, protected_namespaces=())

    if TYPE_CHECKING:  # the keys of `settings_of`

        def __getattr__(self, name: str) -> Any: ...


def built(made: type[T], section: Section, **resolved: Any) -> T:
    """The snapshot's class from the keys that are written in its section, each under the name of its field.

    `resolved` are the fields that are not what the file says: they win, and fields that are not keys stand here too.
    What is neither written nor resolved has the default of its definition. Sections inside the section are left out.
    """
    return made(**{**written(made, section), **resolved})


def written(made: type, section: Section) -> dict[str, Any]:
    """The values that are written in `section`, by the names of the fields of `made`."""
    found = {}
    for key in section.model_fields_set:
        setting = settings_of(made)[key]
        if setting.field is not None and setting.section is None:
            found[setting.field] = getattr(section, key)
    return found


@cache
def model_of(section: type) -> type[Section]:
    """The model that checks what the file says in a section."""
    keys: dict[str, Any] = {key: (_checked(s.hint), _field(s)) for key, s in settings_of(section).items()}
    return create_model(_model_name(section), __base__=Section, __doc__=summary(section), **keys)


def _model_name(section: type) -> str:
    name = section.__name__.removesuffix("Settings")
    return name if section is RoutesFile else f"{name}Section"


def _field(setting: Setting) -> Any:
    if setting.named:
        return Field(default_factory=dict, description=setting.help)
    if is_section(setting.hint):
        return Field(default_factory=model_of(setting.hint), description=setting.help)
    return Field(default=None, description=setting.help)


def _checked(hint: Any) -> Any:
    """The type of a key as pydantic takes it."""
    if is_section(hint):
        return model_of(hint)
    if only := members(hint):
        (member,) = only
        return _checked(member) | None
    if (kind := kind_in(hint)) is not None:
        return Annotated[Any, PlainValidator(kind.read), WithJsonSchema(dict(kind.schema))]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return hint
    if origin is Mapping:
        return types.GenericAlias(dict, (str, _checked(arguments[1])))
    if origin is tuple and arguments[1:] == (...,):
        return Annotated[hint, BeforeValidator(_members), AfterValidator(_distinct)]
    raise TypeError(f"no way to read {hint}: give the key a kind of gateway/config/kinds.py")


def _members(value: Any) -> Any:
    """YAML has lists, the snapshot tuples; whatever is no list is left for pydantic to refuse."""
    return tuple(value) if isinstance(value, list) else value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def json_schema() -> dict[str, Any]:
    """The schema as plain data. A `${VAR}` is allowed wherever a single value is."""
    generated = model_of(RoutesFile).model_json_schema()
    schema = {"title": "routes.yaml of spark-gateway", **_plain(generated)}
    alias = {"$ref": "#/$defs/AliasSection"}
    short = schema["$defs"]["AliasSection"]["properties"]["use"] | {"description": "Short form: the steps in order."}
    schema["properties"]["aliases"]["additionalProperties"] = {"anyOf": [short, alias]}
    for name, found in schema["properties"].items():
        if name != "backends":  # any other may be all commented out
            schema["properties"][name] = {"anyOf": [found, {"type": "null"}]}
    schema["required"] = ["backends"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """As the file `routes.schema.json` holds it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _plain(node: Any) -> Any:
    """Without null, because no key may be given an empty value (the None of the models means "not written"); without
    the defaults, which are not written as the file would write them; without the titles, which repeat the keys."""
    if isinstance(node, list):
        return [_plain(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _plain(inner) for key, inner in node.items() if key not in ("default", "title")}
    members = kept.get("anyOf")
    if isinstance(members, list) and {"type": "null"} in members:
        rest = [member for member in members if member != {"type": "null"}]
        kept.pop("anyOf")
        kept = {**rest[0], **kept} if len(rest) == 1 else {**kept, "anyOf": rest}
    return kept


@cache
def definitions() -> Mapping[str, Setting]:
    """Every key of the file by its path, in the file's order."""
    return dict(walk(RoutesFile))


@cache
def all_keys() -> tuple[str, ...]:
    return tuple(definitions())


def keys_of(section: str) -> tuple[str, ...]:
    """The keys allowed in `section` (`""` = the top level, `backends.*`)."""
    prefix = f"{section}." if section else ""
    rest = (path.removeprefix(prefix) for path in all_keys() if path.startswith(prefix))
    return tuple(key for key in rest if "." not in key)


def pattern_of(path: Path) -> str:
    """`("backends", "qwen36", "url")` → `backends.*.url`."""
    words = [part for part in path if isinstance(part, str)]
    if len(words) > 1 and words[0] in names_of_entries():
        words[1] = "*"
    return ".".join(words)


@cache
def names_of_entries() -> tuple[str, ...]:
    """The sections whose entries have names that the operator chose: `nodes`, `backends`, `aliases`, `clients`."""
    return tuple(key for key, found in settings_of(RoutesFile).items() if found.named)


def was_tried(key: str, section: Path, report: Report) -> bool:
    """Whether `key` of the section was written but wrong, under its own name or misspelt: it has been reported, and
    that it is missing is no second mistake."""
    if report.lost(*section, key):
        return True
    pattern = pattern_of(section)
    siblings = keys_of(pattern)
    unknown = {str(one[-1]) for one in report.dropped if one[:-1] == section and one[-1] not in siblings}
    return any(for_unknown_key(word, pattern, siblings, ()) == f"did you mean '{key}'?" for word in unknown)


def has_all(section: Section, keys: Iterable[str], path: Path, report: Report, hint: str) -> bool:
    """Whether these keys of the section at `path` have values. One that is missing, and was not tried, is reported."""
    missing = [key for key in keys if getattr(section, key) is None]
    for key in missing:
        if not was_tried(key, path, report):
            report.error(path, f"'{key}' is missing", hint.replace("KEY", key))
    return not missing


def is_free(path: Path) -> bool:
    """True inside values whose keys are not the gateway's: `params`, `launch`, `profiles`, `modes`."""
    pattern = pattern_of(path)
    return any(pattern == key or pattern.startswith(f"{key}.") for key in _free())


@cache
def _free() -> tuple[str, ...]:
    return tuple(key for key, found in definitions().items() if found.kind is not None and found.kind.holds_any)
