"""The words of a `docker run`, read as docker's own parser reads them.

Docker's flags end at the first word that is neither a flag nor a flag's value: that word is the image, and everything
behind it is the container's command. Data about the flags: `docker run --help` of Docker 28.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# Flags that take no value; `--rm=false` is allowed, `--rm false` is not.
_SWITCH_NAMES = (
    "--detach --disable-content-trust --help --init --interactive --no-healthcheck --oom-kill-disable --privileged"
    " --publish-all --quiet --read-only --rm --sig-proxy --tty --use-api-socket"
)
_VALUE_NAMES = (
    "--add-host --annotation --attach --blkio-weight --blkio-weight-device --cap-add --cap-drop --cgroup-parent"
    " --cgroupns --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime"
    " --cpu-shares --cpus --cpuset-cpus --cpuset-mems --detach-keys --device --device-cgroup-rule --device-read-bps"
    " --device-read-iops --device-write-bps --device-write-iops --dns --dns-option --domainname --entrypoint --env"
    " --env-file --expose --gpus --group-add --health-cmd --health-interval --health-retries --health-start-interval"
    " --health-start-period --health-timeout --hostname --io-maxbandwidth --io-maxiops --ip --ip6 --ipc --isolation"
    " --kernel-memory --label --label-file --link --link-local-ip --log-driver --log-opt --mac-address --memory"
    " --memory-reservation --memory-swap --memory-swappiness --mount --name --network --network-alias --oom-score-adj"
    " --pid --pids-limit --platform --publish --pull --restart --runtime --security-opt --shm-size --stop-signal"
    " --stop-timeout --storage-opt --sysctl --tmpfs --ulimit --user --userns --uts --volume --volume-driver"
    " --volumes-from --workdir"
)
_SHORT_NAMES = (
    "a=--attach c=--cpu-shares d=--detach e=--env h=--hostname i=--interactive l=--label m=--memory p=--publish"
    " P=--publish-all q=--quiet t=--tty u=--user v=--volume w=--workdir"
)
_SWITCHES = frozenset(_SWITCH_NAMES.split())
_VALUES = frozenset(_VALUE_NAMES.split())
_SHORT = dict(pair.split("=") for pair in _SHORT_NAMES.split())
_OTHER_NAMES = {"--net": "--network", "--net-alias": "--network-alias", "--dns-opt": "--dns-option"}
# Flags of `docker` itself that take a value and may stand before `run`.
_GLOBAL_VALUES = frozenset(("--config", "-c", "--context", "-H", "--host", "-l", "--log-level"))


@dataclass(frozen=True, slots=True)
class DockerRun:
    """One `docker run`.

    `env`: name -> value; None = taken from the caller's environment (`-e NAME`). `volumes`: as for `-v`, `ports`: as
    for `-p`. `flags`: the other flags by their long names, each as `--flag` or `--flag=value`, in order. `command`: the
    words behind the image. `unknown`: flags that docker does not have; what follows one is taken for its value unless
    it begins with a dash. `image` is None when the line has none."""

    image: str | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    name: str | None = None
    entrypoint: str | None = None
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def network(self) -> str:
        """The value of `--network`; "bridge" where it is not said."""
        return next((f.partition("=")[2] for f in reversed(self.flags) if f.startswith("--network=")), "bridge")

    def host_port(self, port: int) -> int:
        """The port of the host that leads to `port` of the container: the same port where none is published."""
        if self.network == "host":
            return port
        return next((host for host, inside in map(published, self.ports) if host and inside == port), port)


def published(text: str) -> tuple[int | None, int | None]:
    """(port of the host, port of the container) of `-p [ADDRESS:][HOST:]CONTAINER[/tcp]`; None for what is not said,
    is a range or is no port."""
    parts = text.partition("/")[0].rsplit(":", 2)
    host = parts[-2] if len(parts) > 1 else ""
    return _port(host), _port(parts[-1])


def _port(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def is_docker_run(words: Sequence[str]) -> bool:
    """Whether the words are a `docker run` (or `podman run`, `sudo docker container run`)."""
    return run_arguments(words) is not None


def run_arguments(words: Sequence[str]) -> Sequence[str] | None:
    """The words behind `docker run`; None when the words are something else."""
    start = 1 if words and words[0].rsplit("/", 1)[-1] == "sudo" else 0
    while start and start < len(words) and words[start].startswith("-"):
        start += 1
    if start >= len(words) or words[start].rsplit("/", 1)[-1] not in ("docker", "podman", "nerdctl"):
        return None
    at = start + 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _GLOBAL_VALUES else 1
    if at < len(words) and words[at] == "container":
        at += 1
    return words[at + 1 :] if at < len(words) and words[at] == "run" else None


def read_docker_run(words: Sequence[str]) -> DockerRun:
    """Read a `docker run`, given with these words in front or from its first flag on. Never raises."""
    inside = run_arguments(words)
    words = words if inside is None else inside
    env: dict[str, str | None] = {}
    lists: dict[str, list[str]] = {"--volume": [], "--publish": []}
    single: dict[str, str] = {}
    flags: list[str] = []
    unknown: list[str] = []
    position = 0
    for flag, value, end in _flags(words):
        position = end
        if flag == "--env":
            name, given, text = (value or "").partition("=")
            env[name] = text if given else None
        elif flag in lists:
            lists[flag].append(value or "")
        elif flag in ("--name", "--entrypoint"):
            single[flag] = value or ""
        else:
            flags.append(flag if value is None else f"{flag}={value}")
            if flag not in _SWITCHES and flag not in _VALUES:
                unknown.append(flag)
    rest = tuple(words[position:])
    rest = rest[1:] if rest[:1] == ("--",) else rest
    return DockerRun(
        image=rest[0] if rest else None,
        env=env,
        volumes=tuple(lists["--volume"]),
        ports=tuple(lists["--publish"]),
        name=single.get("--name"),
        entrypoint=single.get("--entrypoint"),
        flags=tuple(flags),
        command=rest[1:],
        unknown=tuple(unknown),
    )


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str | None, int]]:
    """(long name, value or None, index of the word behind it) of each flag, up to the image or `--`."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        word = words[at]
        at += 1
        if not word.startswith("--"):
            for flag, value in _bundle(word[1:]):
                if value is None and flag not in _SWITCHES and at < len(words):
                    value, at = words[at], at + 1
                yield flag, value, at
            continue
        name, equals, text = word.partition("=")
        flag = _OTHER_NAMES.get(name, name)
        value = text if equals else None
        if value is None and at < len(words) and _takes_next(flag, words[at]):
            value, at = words[at], at + 1
        yield flag, value, at


def _takes_next(flag: str, word: str) -> bool:
    return flag in _VALUES or (flag not in _SWITCHES and not word.startswith("-"))


def _bundle(letters: str) -> Iterator[tuple[str, str | None]]:
    """The flags in a word such as `it`, `dp8001:8000`, `e=X=1`: a flag with a value takes the rest of the word."""
    for index, letter in enumerate(letters):
        flag = _SHORT.get(letter, f"-{letter}")
        rest = letters[index + 1 :]
        if flag in _SWITCHES and not rest.startswith("="):
            yield flag, None
            continue
        yield flag, rest.removeprefix("=") or None
        return
