"""A draft as the text of routes.yaml, and how that is written: never over an existing file without --force, and only
what the gateway would load."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, FoldedScalarString

from gateway.apps.importing.draft import Draft, DraftEntry
from gateway.apps.importing.source_values import variable_name
from gateway.cli.options import fail, is_there
from gateway.config.document import Plain, plain_value, read_document
from gateway.config.load import LoadedFile, load_text
from gateway.config.problems import ConfigError, Report
from gateway.config.schema import schema_text
from gateway.printable import visible

SCHEMA = "routes.schema.json"  # beside the file, for editors
_FIRST_LINE = f"# yaml-language-server: $schema=./{SCHEMA}"
_FLOW_MOST = 3  # keys of a mapping that is written on one line
_LONG = 100  # characters of a command line that is written on one line


def render(draft: Draft) -> str:
    """The draft's data with its comments; reading the text gives exactly `draft.data()`."""
    parts = [_comments([_FIRST_LINE, *(f"# {line}".rstrip() for line in draft.head)])]
    data = draft.data()
    for name in ("server", "defaults"):
        if name in data:
            parts.append(_dump({name: _node(data[name])}))
    for name in ("nodes", "backends", "aliases", "clients"):
        if name in data:
            section = _dump({name: _entries(data[name], getattr(draft, name))})
            parts.append(section + _comments(draft.after.get(name, [])))
    if draft.modes:
        modes = {_scalar(name): _node(list(members)) for name, members in draft.modes.items()}
        parts.append(_dump({"modes": CommentedMap(modes)}))
    if draft.tail:
        parts.append(_comments(draft.tail))
    return "\n".join(parts)


def _comments(lines: list[str]) -> str:
    return "".join(f"{visible(line)}\n" for line in lines)  # no control character of a quoted value can end the comment


def _dump(section: dict[str, Any]) -> str:
    yaml = YAML()
    yaml.width = 1_000_000  # never wrap inside a value
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    yaml.dump(CommentedMap(section), out)
    return out.getvalue()


def _entries(data: dict[str, Any], entries: dict[str, DraftEntry]) -> CommentedMap:
    """The entries by name, each with its comment before it and its remarks behind the keys."""
    made = CommentedMap()
    for name, keys in data.items():
        entry = entries[name]
        node = _node(keys)
        made[_scalar(name)] = node
        if entry.comment:
            comment = "\n".join(visible(line) for line in entry.comment)
            made.yaml_set_comment_before_after_key(_scalar(name), before=comment, indent=2)
        if isinstance(node, CommentedMap) and entry.remarks:
            node.fa.set_block_style()
            for key, remark in entry.remarks.items():
                if key in node:
                    node.yaml_add_eol_comment(visible(remark), key)
    return made


def _node(value: Any) -> Any:
    """Lists and small mappings on one line, larger mappings one key per line, ambiguous strings in quotes."""
    if isinstance(value, dict):
        node = CommentedMap({_scalar(str(key)): _node(inner) for key, inner in value.items()})
        simple = not any(
            isinstance(inner, dict | list | FoldedScalarString) for inner in [*value.values(), *node.values()]
        )
        if not value or (simple and len(value) <= _FLOW_MOST):
            _flow(node)
        return node
    if isinstance(value, list):
        seq = CommentedSeq(_node(inner) for inner in value)
        _flow(seq)
        return seq
    return _scalar(value) if isinstance(value, str) else value


def _flow(node: CommentedMap | CommentedSeq) -> None:
    """Write the node and all below it on one line: block style is not allowed inside of flow style."""
    node.fa.set_flow_style()


def _scalar(text: str) -> str:
    if len(text) > _LONG and " --" in text and text.isprintable() and text == text.strip():
        return _folded(text)
    plain = plain_value(text)
    risky = not isinstance(plain, Plain) or any(c in text for c in "${}[],#&*!|>%@`'\":?") or text != text.strip()
    risky = risky or not text.isprintable()
    return DoubleQuotedScalarString(text) if risky and not _is_url(text) else str(text)


def _folded(text: str) -> FoldedScalarString:
    """A command line as a block, broken in front of flags; it reads as one line again."""
    breaks, start = [], 0
    flags = [match.start() for match in re.finditer(r"(?<=\S) (?=--\S)", text)]
    for at, following in zip(flags, [*flags[1:], len(text)], strict=False):
        if following - start > _LONG:
            breaks.append(at)
            start = at
    folded: FoldedScalarString = FoldedScalarString(text)
    folded.fold_pos = breaks  # type: ignore[attr-defined]  # where ruamel breaks the lines
    return folded


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://")) and not any(c in text for c in "${}[],# \"'")


_REFERENCE = re.compile(r"(?<!\$)\$\{([A-Za-z_]\w*)\}", re.ASCII)
_FILE = re.compile(r"(?<!\$)\$\{file:([^{}]*)\}")
_STAND_IN_URL = "http://127.0.0.1:9"


class RoundTripMismatch(Exception):
    """The text does not mean the same as the draft. A defect of the writer; nothing may be written then."""


def variables(text: str) -> list[str]:
    """The names of all `${NAME}` in the text's values, in order; launch blocks keep theirs for the engine's machine."""
    report = Report("routes.yaml")
    return list(dict.fromkeys(_named(_without_launches(read_document(text, report)))))


def verify_round_trip(text: str, draft: Draft, environ: Mapping[str, str], source: str = "routes.yaml") -> LoadedFile:
    """`text` as the gateway loads it. Variables that `environ` lacks, and files of secrets (which may be on another
    machine), get a stand-in.

    Raises ConfigError when it would not be loaded, RoundTripMismatch when it differs from the draft.
    """
    report = Report(source)
    read = read_document(text, report)
    report.finish()
    if read != draft.data():
        raise RoundTripMismatch(f"{source} would not say what was meant: {_difference(read, draft.data())}")
    stand_ins = {name: _stand_in(name, draft) for name in variables(text) if not environ.get(name)}
    without_files = _FILE.sub(lambda match: f"stands-for-{variable_name(match[1])}", text)
    return load_text(without_files, source, {**environ, **stand_ins})


def _stand_in(name: str, draft: Draft) -> str:
    """A URL where the variable is a backend's URL, else text that is unique to the variable."""
    in_url = any(f"${{{name}}}" == entry.keys.get("url") for entry in draft.backends.values())
    return _STAND_IN_URL if in_url else f"stands-for-{name}"


def _without_launches(data: Any) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get("backends"), dict):
        return data
    backends = data["backends"].items()
    kept = {name: {k: v for k, v in b.items() if k != "launch"} if isinstance(b, dict) else b for name, b in backends}
    return {**data, "backends": kept}


def _named(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [name for inner in value.values() for name in _named(inner)]
    if isinstance(value, list):
        return [name for inner in value for name in _named(inner)]
    return _REFERENCE.findall(value) if isinstance(value, str) else []


def _difference(read: Any, meant: Any, path: str = "") -> str:
    """The first path at which the two differ."""
    if isinstance(read, dict) and isinstance(meant, dict):
        for key in [*meant, *(key for key in read if key not in meant)]:
            if read.get(key) != meant.get(key):
                return _difference(read.get(key), meant.get(key), f"{path}.{key}")
    return path.removeprefix(".") or "its top level"


STDOUT = Path("-")


def output_options(command: click.decorators.FC) -> click.decorators.FC:
    """`-o FILE` and `--force`, given to the command as `output: Path` and `force: bool`."""
    output = click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
        default=Path("routes.yaml"),
        show_default=True,
        help="Where to write; - = to stdout.",
    )
    force = click.option("--force", is_flag=True, help="Replace the file if it exists.")
    return output(force(command))


def refuse_to_overwrite(output: Path, *, force: bool) -> None:
    """Raises UsageError when the file exists. Called before the work, and by `write`."""
    if output != STDOUT and is_there(output) and not force:
        raise click.UsageError(f"'{output}' exists already: replace it with --force, or write elsewhere with -o FILE")


def write(text: str, output: Path, *, force: bool) -> None:
    """Write the file atomically, so that a gateway that watches it never reads a part; and the schema that its first
    line names, where there is none beside it."""
    if output == STDOUT:
        click.echo(text, nl=False)
        return
    aside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        aside.write_text(text, "utf-8")
        if force:
            aside.replace(output)
        else:
            os.link(aside, output)  # fails if the file was created meanwhile
            aside.unlink()
    except FileExistsError:
        aside.unlink(missing_ok=True)
        refuse_to_overwrite(output, force=False)
    except OSError as error:
        aside.unlink(missing_ok=True)
        fail(f"cannot write '{output}': {error.strerror or error}")
    with suppress(OSError), output.with_name(SCHEMA).open("x", encoding="utf-8") as schema:
        schema.write(schema_text())


def deliver(text: str, output: Path, *, force: bool, document: dict[str, Any] | None) -> None:
    """Write the file. With a document for scripts, print that: it holds the text that would go to stdout."""
    if text and (document is None or output != STDOUT):
        write(text, output, force=force)
    if document is not None:
        written = {"written": str(output) if text and output != STDOUT else None}
        routes = {"routes": text} if text and output == STDOUT else {}
        click.echo(json.dumps({"ok": bool(text), **written, **document, **routes}, indent=2))


def render_and_verify(draft: Draft, output: Path) -> tuple[str, LoadedFile]:
    """(the file's text, the loaded file). Exits 1 when the gateway would not load it."""
    text = render(draft)
    name = "routes.yaml" if output == STDOUT else str(output)
    try:
        return text, verify_round_trip(text, draft, os.environ, name)
    except ConfigError as error:
        click.echo(str(error), err=True)
        fail("the gateway would not load this file; nothing is written")
    except RoundTripMismatch as error:
        fail(f"{error}; nothing is written")
