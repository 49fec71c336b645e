"""routes.yaml → `Snapshot`: read the YAML, expand variables, validate, resolve names, collect warnings; and its last
good version, which is kept."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.config.document import read_document
from gateway.config.expand import Expander, ExpandError, parse_env
from gateway.config.problems import ConfigError, Digests, Problem, Report
from gateway.config.problems import Path as KeyPath
from gateway.config.resolve import resolve
from gateway.config.setting import settings_of
from gateway.config.snapshot import Server, Snapshot
from gateway.config.sources import Sources, read_file, replace_file
from gateway.config.validate import validated

log = logging.getLogger("gateway.config")


@dataclass(frozen=True)
class LoadedFile:
    """A valid file: its snapshot and the warnings. `sources` are the digests of the files that were read: the file
    itself, the env file (also one that does not exist yet) and those of `${file:...}`. `lines`: path of a key or a
    list member -> its line. `text`: as it is written."""

    snapshot: Snapshot
    warnings: list[Problem]
    sources: Digests = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    text: str = field(default="", repr=False)


def load(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> LoadedFile:
    """Read `path`. `environ` is the process environment unless given. Raises `ConfigError` with every problem."""
    sources = Sources()
    try:
        loaded = load_text(_text_of(Path(path), str(path), sources), str(path), environ, sources)
    except ConfigError as error:
        error.sources = sources
        raise
    if _runs_commands(loaded.snapshot) and _others_may_write(Path(path)):
        message = "everybody on this machine may write this file, and it says which commands the gateway runs"
        loaded.warnings.append(Problem(str(path), None, "", message, f"chmod o-w {path}"))
    return loaded


def _runs_commands(snapshot: Snapshot) -> bool:
    """Whether some backend can be started or stopped: by its own command, or over the ssh of its node."""
    backends = snapshot.backends.values()
    return any(one.start or one.stop or one.launch for one in backends)


def _others_may_write(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _text_of(file: Path, name: str, sources: Sources) -> str:
    try:
        return sources.read(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(name, line, "", "not UTF-8 text", "save the file as UTF-8")]) from None
    except FileNotFoundError:
        hint = "name another one with --config, or make one with `gateway init`"
        raise ConfigError([Problem(name, None, "", "there is no such file", hint)]) from None
    except OSError as error:
        raise ConfigError([Problem(name, None, "", "cannot be read", error.strerror)]) from None
    except ValueError:
        raise ConfigError([Problem(name, None, "", "no name of a file")]) from None


def load_text(
    text: str,
    source: str = "routes.yaml",
    environ: Mapping[str, str] | None = None,
    sources: Sources | None = None,
) -> LoadedFile:
    """As `load`, from text. Relative paths begin at the folder of `source`; other files are read through `sources`."""
    report = Report(source)
    sources = Sources() if sources is None else sources
    data = read_document(text, report)
    if data is None:
        report.finish()
    data = data or {}
    folder = Path(source).parent
    process = dict(os.environ if environ is None else environ)
    variables, env_file = _env_file(data, folder, process, sources, report)
    # the process environment wins over the file
    expander = Expander({**variables, **process}, folder, sources, env_file)
    expanded = expander.tree(data, report)
    file = validated(expanded, report)
    snapshot = resolve(file, report)
    warnings = report.finish()
    if report.outside:
        snapshot = deepcopy(snapshot)  # without what its values know of variables, see `ExpandedText`
    return LoadedFile(snapshot, warnings, sources, report.lines, text)


def _env_file(
    data: dict[str, Any], folder: Path, process: Mapping[str, str], sources: Sources, report: Report
) -> tuple[dict[str, str], str | None]:
    """(the variables of `server.env_file`, its name as it is written; None = there is no such file to set one in). The
    default `.env` may be missing, one that is named may not."""
    server = data.get("server")
    written = server.get("env_file") if isinstance(server, dict) else None
    if written == "none":
        return {}, None
    if written is not None and (not isinstance(written, str) or not written.strip()):
        return {}, None  # validation reports the mistake
    default = settings_of(Server)["env_file"].default
    try:
        name = Expander(process, folder, sources).text(written) if written else default
    except ExpandError:
        return {}, None  # expanding the whole file reports the mistake
    path, shown = folder / name, written or default
    try:
        text = sources.read(path).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        if not missing or (written and name != default):
            why = "there is no such file" if missing else "it cannot be read as text"
            reason = getattr(error, "strerror", None)
            report.error(("server", "env_file"), f"'{shown}': {why}", None if missing or not reason else str(reason))
        return {}, Path(shown).name if missing else None
    variables, problems = parse_env(text, str(folder / shown))
    report.errors.extend(problems)
    return variables, Path(shown).name


# -- the last good version, in `server.data`: what a restart serves when the file has a mistake -----------------------

LAST_GOOD = "last-good.yaml"
_HEAD = "# The last good version of "
_DATA = re.compile(r"""\bdata:\s*(?:"([^"\n]+)"|'([^'\n]+)'|((?:\$\{[^}\s]*\}|[^\s"',}#])+))""")


def keep_last_good(path: Path, text: str, data: Path) -> None:
    """Keep the text of the file at `path`, for its owner alone. Blocks."""
    file = data / LAST_GOOD
    whole = f"{_HEAD}{path.absolute()}\n{text}".encode()
    try:
        if file.read_bytes() == whole:
            return
    except OSError:
        pass
    try:
        replace_file(file, whole)
    except OSError as error:
        log.warning("%s cannot be written (%s): a restart with a broken file will not serve it", file, error)


def last_good(path: Path) -> LoadedFile | None:
    """The last good version of the file at `path`, which has a mistake; None where none is kept, or it is good no
    longer (a variable that is not set any more). Blocks."""
    for folder in _folders(path):
        try:
            head, _, text = read_file(folder / LAST_GOOD).decode().partition("\n")
            if head == f"{_HEAD}{path.absolute()}":
                return load_text(text, str(path))
        except (OSError, ValueError, ConfigError):
            continue
    return None


def _folders(path: Path) -> list[Path]:
    """Where `server.data` may be: as the broken file seems to say, else its default."""
    try:
        text = read_file(path).decode(errors="replace")
    except (OSError, ValueError):
        text = ""
    said = [next(filter(None, found)) for found in _DATA.findall(text)]
    return [Path(os.path.expandvars(name)) for name in [*said[:10], settings_of(Server)["data"].default]]
