"""A compose file: each service that runs a vLLM becomes a backend with a launch block."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

from gateway.apps.importing.compose_profiles import put_profiles
from gateway.apps.importing.draft import Draft
from gateway.apps.importing.launches import Launches
from gateway.apps.importing.shell import Word, without_unset
from gateway.apps.importing.source import (
    SourceFile,
    data_of,
    is_true,
    listed,
    mapping,
    note_unread,
    read_source,
    scalar_of,
    text_of,
)
from gateway.config.expand import parse_env
from gateway.config.problems import Path
from gateway.launch.docker import DockerFlag, DockerRun, read_docker_run
from gateway.launch.words import split

_NAMED_VOLUME = re.compile(r"([A-Za-z0-9][\w.-]*):", re.ASCII)
_BASES = 8  # services that extend one another
Beside = Callable[[str], str | None]


def convert(text: str, file: str, address: str | None = None, beside: Beside = lambda name: None) -> Draft:
    """The draft of a compose file. `beside`: the text of a file in its folder, None where there is none that can be
    read. Raises ConfigError for broken YAML."""
    source = read_source(text, file)
    launches = Launches(file, source.report.line, address)
    variables = parse_env(beside(".env") or "", ".env")[0]
    values = Values(launches, variables)
    if variables:
        launches.notes.changed((), f"{len(variables)} variables are read from the .env beside it")
    top = {key: values.tree(source.data.get(key), (key,)) for key in ("name", "volumes")}
    profiles: dict[str, list[str]] = {}
    for name, value in source.section("services").items():
        path: Path = ("services", name)
        service = values.tree(_extended(mapping(value), source, beside, launches, path), path)
        before = set(launches.draft.backends)
        _service(name, service, path, top, launches, values, beside)
        made = [one for one in launches.draft.backends if one not in before]
        if own := [shown for one in listed(service.get("profiles")) if (shown := text_of(one))]:
            profiles |= dict.fromkeys(made, own)
    put_profiles(launches, profiles, variables.get("COMPOSE_PROFILES", "").split(","))
    if "include" in source.data:
        launches.notes.to_do(("include",), "further compose files are not read", "import each of them")
    own = [key for key in source.data if not key.startswith("x-")]
    note_unread(launches.notes, (), own, "compose", "top")
    return launches.finished()


def _extended(
    service: dict[str, Any], source: SourceFile, beside: Beside, launches: Launches, path: Path, depth: int = 0
) -> dict[str, Any]:
    """The service with what it extends: mappings are joined, lists of mounts and ports are added, the rest is
    replaced."""
    extends = service.get("extends")
    if extends is None:
        return service
    named = text_of(extends) or text_of(mapping(extends).get("service")) or ""
    other = text_of(mapping(extends).get("file"))
    text = beside(other) if other is not None else None
    base_source = read_source(text, other) if text is not None and other is not None else source
    base = base_source.section("services").get(named)
    if (other is not None and text is None) or not isinstance(base, dict) or depth >= _BASES:
        launches.notes.to_do((*path, "extends"), f"'{named}' is not found", "write what it has into the service")
        return service
    base = _extended(base, base_source, beside, launches, path, depth + 1)
    merged = {**base, **service}
    for key in base.keys() & service.keys():
        one, two = base[key], service[key]
        if key == "environment":
            merged[key] = _environment(one) | _environment(two)
        elif isinstance(one, dict) and isinstance(two, dict):
            merged[key] = one | two
        elif key in ("volumes", "ports", "env_file", "devices", "expose") and isinstance(one, list):
            merged[key] = [*one, *listed(two)]
    return {key: value for key, value in merged.items() if key != "extends"}


def _service(
    name: str,
    service: dict[str, Any],
    path: Path,
    top: dict[str, Any],
    launches: Launches,
    values: Values,
    beside: Beside,
) -> None:
    image = scalar_of(service.get("image"))
    if image is None:
        built = "its image is built from a Dockerfile" if "build" in service else "it has no image"
        launches.notes.left_out(path, built, "write launch: under a backend by hand, with the image's name")
        return
    if "vllm" not in f"{image} {service.get('command')} {service.get('entrypoint')}".lower():
        hint = "`gateway init HOST` finds running servers" if "ollama" in image else None
        launches.notes.left_out(path, f"{launches.secrets.mask(image)} is no vLLM", hint)
        return
    entrypoint = values.words(service.get("entrypoint"), (*path, "entrypoint"))
    read, left = _env_files(service, beside)
    env: dict[str, str | None] = {**values.tree(read, (*path, "env_file")), **_environment(service.get("environment"))}
    env = {key: values.variables.get(key) if value is None else value for key, value in env.items()}
    given = [DockerFlag("env", key if value is None else f"{key}={value}") for key, value in env.items()]
    told = "a mount without a source", "write it under launch.docker"
    volumes = _short_forms(service.get("volumes"), (*path, "volumes"), launches, _volume, *told)
    given += [DockerFlag("volume", _own_volume(one, top, (*path, "volumes"), launches)) for one in volumes]
    told = "a port that is not published", "write published: PORT"
    ports = _short_forms(service.get("ports"), (*path, "ports"), launches, _port, *told)
    given += [DockerFlag("publish", one) for one in ports]
    given += [DockerFlag("name", name), *(DockerFlag("entrypoint", word) for word in entrypoint[:1])]
    given += read_docker_run((*_flags(service, path, launches), *(f"--env-file={one}" for one in left))).given
    run = DockerRun(image, tuple(given), (*entrypoint[1:], *values.words(service.get("command"), (*path, "command"))))
    env_path = (*path, "environment") if isinstance(service.get("environment"), dict) else None
    launches.container(run, path, PurePath(launches.file).stem, env_path=env_path)


def _env_files(service: dict[str, Any], beside: Beside) -> tuple[dict[str, str], list[str]]:
    """(the variables of the files that `env_file` names, the files that cannot be read)."""
    found: dict[str, str] = {}
    left = []
    for file in listed(service.get("env_file")) or [service.get("env_file")]:
        name = scalar_of(mapping(file).get("path") if isinstance(file, dict) else file)
        text = beside(name) if name else None
        if name and text is not None:
            found |= parse_env(text, name)[0]
        elif name:
            left.append(name)
    return found, left


def _environment(value: Any) -> dict[str, str | None]:
    if isinstance(value, dict):
        return {str(name): None if inner is None else scalar_of(inner) or "" for name, inner in value.items()}
    pairs = ((text_of(one) or "").partition("=") for one in listed(value))
    return {name: text if equals else None for name, equals, text in pairs if name}


def _volume(mount: dict[str, Any]) -> str | None:
    source, target = scalar_of(mount.get("source")), scalar_of(mount.get("target"))
    is_known = source and target and mount.get("type", "bind") in ("bind", "volume")
    return f"{source}:{target}" + (":ro" if is_true(mount.get("read_only")) else "") if is_known else None


def _short_forms(
    value: Any, path: Path, launches: Launches, short: Callable[[dict[str, Any]], str | None], message: str, hint: str
) -> Iterator[str]:
    """The entries of a list, those in the long form (mappings) as `short` has them; a note for those that have none."""
    for index, one in enumerate(listed(value)):
        text = short(one) if isinstance(one, dict) else scalar_of(one)
        if text is not None:
            yield text
        elif isinstance(one, dict):
            launches.notes.to_do((*path, index), message, hint)


def _own_volume(volume: str, top: dict[str, Any], path: Path, launches: Launches) -> str:
    """`hf:/x` with the name that docker has for it: compose puts the project's in front of those that it declares."""
    match = _NAMED_VOLUME.match(volume)
    declared = mapping(top.get("volumes"))
    if match is None or match[1] not in declared:
        return volume
    settings = mapping(declared[match[1]])
    stated, project = scalar_of(settings.get("name")), scalar_of(top.get("name"))
    if stated is None and is_true(settings.get("external")):
        stated = match[1]
    if stated is None and project is None:
        message = f"docker has volume {match[1]} as PROJECT_{match[1]}, and another one would be empty"
        launches.notes.to_do(path, message, "write the name that `docker volume ls` shows")
        return volume
    return f"{stated or f'{project}_{match[1]}'}{volume[match.end(1) :]}"


def _port(port: dict[str, Any]) -> str | None:
    """The long form of a port as `-p` has it: who is bound to 127.0.0.1 must not be open to the network here."""
    target, published = scalar_of(port.get("target")), scalar_of(port.get("published"))
    host, protocol = scalar_of(port.get("host_ip")), scalar_of(port.get("protocol"))
    address = "" if host is None else f"[{host}]:" if ":" in host and not host.startswith("[") else f"{host}:"
    end = f"/{protocol}" if protocol not in (None, "tcp") else ""
    return f"{address}{published}:{target}{end}" if target and published else None


def _flags(service: dict[str, Any], path: Path, launches: Launches) -> Iterator[str]:
    known, unread = data_of("formats")["compose"], []
    for key, value in service.items():
        flag = known["flags"].get(key, f"--{key.replace('_', '-')}")
        if key in known["texts"]:
            yield from [] if (text := scalar_of(value)) is None else [f"{flag}={text}"]
        elif key in known["lists"]:
            yield from (f"{flag}={text}" for one in listed(value) or [value] if (text := scalar_of(one)) is not None)
        elif key in known["switches"]:
            yield from [flag] if is_true(value) else []
        elif key == "ulimits":
            yield from _ulimits(mapping(value))
        elif not key.startswith("x-"):
            unread.append(key)
    note_unread(launches.notes, path, unread, "compose", "service")
    yield from _gpus(service, path, launches)


def _ulimits(limits: dict[str, Any]) -> Iterator[str]:
    for name, value in limits.items():
        bounds = [value.get(key) for key in ("soft", "hard")] if isinstance(value, dict) else [value]
        if texts := [text for bound in bounds if (text := scalar_of(bound)) is not None]:
            yield f"--ulimit={name}={':'.join(texts)}"


def _gpus(service: dict[str, Any], path: Path, launches: Launches) -> Iterator[str]:
    """`gpus: all`, or the devices that `deploy` reserves."""
    deploy = mapping(service.get("deploy"))
    reserved = mapping(mapping(deploy.get("resources")).get("reservations"))
    for device in listed(reserved.get("devices")) + listed(service.get("gpus")):
        ids = [text for one in listed(mapping(device).get("device_ids")) if (text := scalar_of(one))]
        count = scalar_of(mapping(device).get("count")) or "all"
        yield f'--gpus="device={",".join(ids)}"' if ids else f"--gpus={count}"
    if (all_of_them := scalar_of(service.get("gpus"))) is not None:
        yield f"--gpus={all_of_them}"
    if mapping(deploy.get("resources")).get("limits") is not None:
        hint = "a limit of memory kills an engine while it loads: leave it out"
        launches.notes.left_out((*path, "deploy", "resources", "limits"), "has no counterpart here", hint)


# -- values, as compose reads them ------------------------------------------------------------------------------------


_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)|\$([A-Za-z_]\w*)", re.ASCII)
_REFERENCE = re.compile(r"\$\{\w+\}", re.ASCII)
_DEEPEST = 8  # defaults inside of defaults


class Values:
    """Texts with their variables put in. `variables`: those that the `.env` beside the file sets."""

    def __init__(self, launches: Launches, variables: dict[str, str]) -> None:
        self.launches = launches
        self.variables = {
            name: launches.secrets.value(name, value, (".env", name)) for name, value in variables.items()
        }

    def tree(self, value: Any, path: Path) -> Any:
        """A value with the variables put into every text in it."""
        if isinstance(value, dict):
            return {key: self.tree(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.tree(inner, (*path, index)) for index, inner in enumerate(value)]
        return self.filled(value, path) if isinstance(value, str) and "$" in value else value

    def words(self, value: Any, path: Path) -> list[str]:
        """The words of a command: a list as it is, text as a shell splits it; of text, what is not set is no word."""
        if isinstance(value, list):
            return [str(one).lower() if isinstance(one, bool) else str(one) for one in value if one is not None]
        words = split(text_of(value) or "").words
        marked = [Word(word, unset=_REFERENCE.fullmatch(word) is not None) for word in words]
        return [word.text for word in without_unset(marked, lambda told: self._note(path, told))]

    def filled(self, text: str, path: Path, depth: int = 0) -> str:
        """`$X`, `${X}` and its forms; `$$` is a dollar sign for the container, `$${` in the launch block. A variable
        that has no value stays `${X}`."""
        made, at = [], 0
        while (match := _VARIABLE.search(text, at)) is not None:
            made.append(text[at : match.start()])
            at = match.end()
            if match[0] == "$$":
                made.append("$$" if text[at : at + 1] == "{" else "$")
            elif match[2] is not None:
                made.append(self.variables.get(match[2], f"${{{match[2]}}}"))
            else:
                end = _closing(text, at)
                made.append(self._braced(match[1], text[at:end], path, depth))
                at = end + 1
        self.launches.notes.spend(len(text))
        return "".join([*made, text[at:]])

    def _braced(self, name: str, rest: str, path: Path, depth: int) -> str:
        value = self.variables.get(name)
        operator = re.match(r":?[-?+]", rest)
        if operator is None or depth >= _DEEPEST:
            return f"${{{name}}}" if value is None else value
        operand = rest[operator.end() :]
        is_set = value is not None and (value != "" or operator[0][0] != ":")
        if operator[0][-1] == "+":
            if not is_set:
                self._note(path, f"what ${{{name}:+...}} puts in is left out: {name} is not set here")
            return self.filled(operand, path, depth + 1) if is_set else ""
        if is_set or operator[0][-1] == "?":
            return f"${{{name}}}" if value is None else value
        default = self.filled(operand, path, depth + 1)
        if default and (kept := self.launches.secrets.value(name, default, path)) != default:
            return kept  # a secret, which has its note
        self._note(path, f"{name} is not set here: its default '{default}' is taken")
        return default

    def _note(self, path: Path, told: str) -> None:
        self.launches.notes.changed(path, self.launches.secrets.mask(told))


def _closing(text: str, at: int) -> int:
    """The place of the brace that ends an expansion; the end of the text without one."""
    depth = 1
    while at < len(text):
        depth += text.startswith("${", at)
        depth -= text[at] == "}"
        if not depth:
            return at
        at += 1
    return len(text)
