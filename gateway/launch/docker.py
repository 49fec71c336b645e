"""The words of a `docker run`, read as docker's own parser reads them.

Docker's flags end at the first word that is neither a flag nor a flag's value: that word is the image, and everything
behind it is the container's command. The `docker` text of a launch block is such a line without the image. Data about
the flags (docker_run.json): `docker run --help` of Docker 28. `global_values`: flags of `docker` itself that take a
value and may stand before `run`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gateway.launch.flags import one_typo_away
from gateway.launch.secrets import MASK, SECRET, masked_keys
from gateway.launch.words import split

_NAMES = json.loads(Path(__file__).with_name("docker_run.json").read_text(encoding="utf-8"))
_SWITCHES = frozenset(_NAMES["switches"])  # take no value; `--rm=false` is allowed, `--rm false` is not
_VALUES = frozenset(_NAMES["values"])


class DockerFlag(NamedTuple):
    """`name`: the long name without dashes (`-X` for a letter that docker does not have); `value`: None where the flag
    has none, as a switch."""

    name: str
    value: str | None = None

    @property
    def option(self) -> str:
        return self.name if self.name.startswith("-") else f"--{self.name}"

    def words(self) -> tuple[str, ...]:
        if self.value is None:
            return (self.option,)
        return (str(self),) if self.option in _SWITCHES else (self.option, self.value)

    def __str__(self) -> str:
        """`--flag`, or `--flag=value`."""
        return self.option if self.value is None else f"{self.option}={self.value}"


_OF_THEIR_OWN = ("env", "volume", "publish", "name", "entrypoint")  # flags that a DockerRun has a property for


@dataclass(frozen=True, slots=True)
class DockerRun:
    """One `docker run`, or the flags of one. `given`: its flags in order; the word after a flag that docker does not
    have counts as its value unless it begins with a dash. `command`: the words behind the image. `image`: None if the
    line has none. `problem`: why docker would not take the flags, in words; None if it would, as far as is known
    here."""

    image: str | None = None
    given: tuple[DockerFlag, ...] = ()
    command: tuple[str, ...] = ()
    problem: str | None = None

    def values(self, name: str) -> tuple[str, ...]:
        """The values of a flag, by its long name without dashes."""
        return tuple(flag.value for flag in self.given if flag.name == name and flag.value is not None)

    def has(self, *names: str) -> bool:
        """Whether one of these flags is given."""
        return any(flag.name in names for flag in self.given)

    @property
    def env(self) -> dict[str, str | None]:
        """Name -> value; None: taken from the caller's environment (`-e NAME`)."""
        pairs = (text.partition("=") for text in self.values("env"))
        return {name: value if equals else None for name, equals, value in pairs}

    @property
    def volumes(self) -> tuple[str, ...]:
        return self.values("volume")

    @property
    def ports(self) -> tuple[str, ...]:
        """The values of `-p`."""
        return self.values("publish")

    @property
    def name(self) -> str | None:
        return next(reversed(self.values("name")), None)

    @property
    def entrypoint(self) -> str | None:
        """The replacement of the image's own entrypoint: "" switches it off, None leaves it."""
        return next(reversed(self.values("entrypoint")), None)

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that no other property tells, each as `--flag` or `--flag=value`."""
        return tuple(str(flag) for flag in self.given if flag.name not in _OF_THEIR_OWN)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Flags that docker does not have."""
        return tuple(flag.option for flag in self.given if flag.option not in _SWITCHES | _VALUES)

    def meant_by(self, option: str) -> str | None:
        """The flag that docker has and that a flag which it does not have is one typo away from."""
        return one_typo_away(option, sorted(_SWITCHES | _VALUES)) if option.startswith("--") else None

    @property
    def network(self) -> str:
        """The value of `--network`; "bridge" where it is not given."""
        return next(reversed(self.values("network")), "bridge")

    def host_port(self, port: int) -> int:
        """The port of the host that leads to `port` of the container: the same port where none is published."""
        if self.network == "host":
            return port
        return next((host for host, inside in map(published_ports, self.ports) if host and inside == port), port)


def bound_to(text: str) -> str:
    """The address of the host that `-p [ADDRESS:][HOST:]CONTAINER` binds; "" = every address."""
    return text.partition("/")[0].rsplit(":", 2)[0].strip("[]") if text.count(":") > 1 else ""


def published_ports(text: str) -> tuple[int | None, int | None]:
    """(port of the host, port of the container) of `-p [ADDRESS:][HOST:]CONTAINER[/tcp]`; None for a port that is not
    given, a range, or not of TCP."""
    ports, _, protocol = text.partition("/")
    if protocol not in ("", "tcp"):
        return None, None
    parts = ports.rsplit(":", 2)
    host = parts[-2] if len(parts) > 1 else ""
    return _port(host), _port(parts[-1])


def _port(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def is_docker_run(words: Sequence[str]) -> bool:
    """Whether the words are a `docker run` (or `podman run`, `sudo docker container run`, `docker create`)."""
    return run_arguments(words) is not None


def run_arguments(words: Sequence[str]) -> Sequence[str] | None:
    """The words behind `docker run` or `docker create`; None when the words are something else."""
    start = 1 if words and words[0].rsplit("/", 1)[-1] == "sudo" else 0
    while start and start < len(words) and words[start].startswith("-"):
        start += 1
    if start >= len(words) or words[start].rsplit("/", 1)[-1] not in ("docker", "podman", "nerdctl"):
        return None
    at = start + 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _NAMES["global_values"] else 1
    if at < len(words) and words[at] == "container":
        at += 1
    return words[at + 1 :] if at < len(words) and words[at] in ("run", "create") else None


def read_docker_run(words: Sequence[str]) -> DockerRun:
    """Read a `docker run`, given with these words in front or from its first flag on. Never raises."""
    inside = run_arguments(words)
    words = words if inside is None else inside
    found = list(_flags(words))
    given = [flag for flag, _ in found]
    rest = tuple(words[found[-1][1] :] if found else words)
    rest = rest[1:] if rest[:1] == ("--",) else rest
    return DockerRun(rest[0] if rest else None, tuple(given), rest[1:], _problem(given))


def read_docker_flags(text: str | None) -> DockerRun:
    """Read the flags of a `docker run` alone, as a launch block has them. Never raises."""
    words, problem = split(text or "")
    if problem is not None:
        return DockerRun(problem=problem)
    run = read_docker_run(words)
    if run.image is not None and run.problem is None:
        last = run.given[-1] if run.given else DockerFlag("")
        # Behind `-e NAME` of a secret, without its value, may stand that value.
        secret = last.name == "env" and SECRET.search(last.value or "")
        word = MASK if secret else masked_keys(run.image)
        problem = f"'{word}' is no flag of `docker run`; the image and its command have keys of their own"
        return DockerRun(given=run.given, problem=problem)
    return DockerRun(given=run.given, problem=run.problem)


def _problem(given: Sequence[DockerFlag]) -> str | None:
    for flag in given:
        if flag.name.startswith("-"):
            return f"'{flag.option}' is no flag of `docker run`"
        if flag.value is None and flag.option in _VALUES:
            return f"'{flag.option}' has no value"
    return None


def _flags(words: Sequence[str]) -> Iterator[tuple[DockerFlag, int]]:
    """Each flag up to the image or `--`, with the index of the word behind it."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        word = words[at]
        at += 1
        if not word.startswith("--"):
            for option, value in _bundle(word[1:]):
                if value is None and option not in _SWITCHES and at < len(words):
                    value, at = words[at], at + 1
                yield DockerFlag(option.removeprefix("--"), value), at
            continue
        name, equals, text = word.partition("=")
        option = _NAMES["other_names"].get(name, name)
        value = text if equals else None
        takes_next = option in _VALUES or (option not in _SWITCHES and not "".join(words[at : at + 1]).startswith("-"))
        if value is None and at < len(words) and takes_next:
            value, at = words[at], at + 1
        yield DockerFlag(option.removeprefix("--"), value), at


def _bundle(letters: str) -> Iterator[tuple[str, str | None]]:
    """The flags in a word such as `it`, `dp8001:8000`, `e=X=1`: a flag with a value takes the rest of the word."""
    for index, letter in enumerate(letters):
        option = _NAMES["short"].get(letter, f"-{letter}")
        rest = letters[index + 1 :]
        if option in _SWITCHES and not rest.startswith("="):
            yield option, None
            continue
        yield option, rest.removeprefix("=") or None
        return
