"""What the template of the launch script needs: the engine's command line and the steps that differ by profile.

The engine's words stand in the script as they are, each quoted once. `docker run` gets them as its argument vector, so
no other shell reads them: JSON keeps its quotes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

from gateway.apps.fleet.render.files import env_path
from gateway.apps.fleet.render.launches import NodeLaunch, published_port
from gateway.apps.fleet.render.templates import QuotedText, Templates
from gateway.apps.fleet.render.words import required, shell_path, shell_word
from gateway.domain.engine_traits import traits_of
from gateway.launch.docker import DockerFlag
from gateway.launch.secrets import SECRET

# Variables of the engine that would change the tools of the script itself: they are only ever given to docker.
_OF_THE_SCRIPT = re.compile(r"PATH|HOME|IFS|LD_\w+|DOCKER_\w+|BASH\w*|XDG_\w+|\w+_PROXY|\w+_proxy", re.ASCII)


def docker_words(launch: NodeLaunch) -> list[str]:
    """`docker run` up to the image, a line per flag."""
    words = ["docker run", f"--name {launch.name}"]  # no --rm: `clean` asks it how it ended
    words += [" ".join(map(shell_word, flag.words())) for flag in docker_flags(launch)]
    if launch.variables:
        words.append(f"--env-file {env_path(launch.name)}")
    hidden = exported(launch)
    words += [
        f"--env {name}" if name in hidden else f"--env {shell_word(f'{name}={value}')}"
        for name, value in launch.env.items()
    ]
    words += [f"--volume {shell_path(volume, launch.user)}" for volume in launch.volumes]
    if launch.entrypoint is not None:
        words.append(f"--entrypoint {shell_word(launch.entrypoint)}")
    return [*words, shell_word(launch.launch.image or "")]


def docker_flags(launch: NodeLaunch) -> tuple[DockerFlag, ...]:
    """The operator's flags of `docker run`, behind those that an engine on a Spark needs and they do not speak of."""
    given = launch.flags
    names = {flag.name for flag in given}
    limits = {(flag.value or "").partition("=")[0] for flag in given if flag.name == "ulimit"}
    found = []
    if "gpus" not in names and not any("nvidia.com/" in (f.value or "") for f in given if f.name == "device"):
        found.append(DockerFlag("gpus", "all"))
    if "ipc" not in names:
        found.append(DockerFlag("ipc", "host"))
    found += [DockerFlag("ulimit", f"{k}={v}") for k, v in _LIMITS.items() if k not in limits]
    if not names & {"network", "publish", "publish-all"}:
        port = published_port(launch)
        if launch.nodes > 1:
            found.append(DockerFlag("network", "host"))
        elif port is not None:
            found.append(DockerFlag("publish", f"{port}:{port}"))
    if not names & {"log-driver", "log-opt"}:
        found += [DockerFlag("log-driver", "local"), *(DockerFlag("log-opt", f"{k}={v}") for k, v in LOG.items())]
    return (*found, *given)


_LIMITS = {"memlock": "-1", "stack": "67108864"}
LOG = {"max-size": "50m", "max-file": "5"}


def exported(launch: NodeLaunch) -> dict[str, str]:
    """Variables that come through the environment, where no `ps` shows them: on the host all of them, for a container
    those that refer to others or look like a secret."""
    if not launch.launch.image:
        return dict(launch.env)
    hidden = {k: v for k, v in launch.env.items() if "${" in v or SECRET.search(k)}
    return {name: value for name, value in hidden.items() if not _OF_THE_SCRIPT.fullmatch(name)}


# The host's side of a mount; a colon inside a reference (${NAME:-/models}) does not end it.
_SOURCE = re.compile(r"((?:\$\{[^{}]*\}|[^:])+):")


def script_values(launch: NodeLaunch, templates: Templates) -> dict[str, Any]:
    """The values of `launch.sh.j2` that other files have no use for."""
    run = _by_profile(launch, _run_lines)
    return {
        "notes": [note.message for note in launch.notes],
        "profile": launch.profile,
        "profiles": [variant.profile for variant in launch.variants],
        "mounts": any(_host_paths(launch)),
        "otherwise": any("$(otherwise " in line for line in run),
        "needed": any(required(one.texts) for one in (launch, *launch.variants)),
        "run": run,
        "url": launch.url and _health_url(launch),
        "url_lines": _by_profile(launch, lambda one: [QuotedText(f"url={shlex.quote(_health_url(one))}")]),
        "warm_up": _by_profile(launch, lambda one: [_warm_up(one, templates)]) if warms_up(launch) else [],
    }


def _by_profile(launch: NodeLaunch, lines_of: Callable[[NodeLaunch], list[QuotedText]]) -> list[QuotedText]:
    """The lines of a function, by the profile that is chosen when it runs; first those that all profiles share."""
    if not launch.variants:
        return lines_of(launch)
    by_profile = {variant.profile: lines_of(variant) for variant in launch.variants}
    every = list(by_profile.values())
    shared = [lines[0] for lines in takewhile(lambda lines: len(set(lines)) == 1, zip(*every, strict=False))]
    if all(lines == shared for lines in every):
        return shared
    cases = [
        f"  {line}"
        for profile, lines in by_profile.items()
        for line in (f"{shlex.quote(profile)})", *(f"  {line}" for line in lines[len(shared) :]), "  ;;")
    ]
    return [*shared, *map(QuotedText, ("choose_profile", "case $spark_profile in", *cases, "esac"))]


def _run_lines(launch: NodeLaunch) -> list[QuotedText]:
    lines = [f"needed {name}" for name in required(launch.texts)]
    lines += [f"present {path}" for path in _host_paths(launch)]
    assigned = {name: value for name, value in exported(launch).items() if value != f"${{{name}}}"}
    words = ["env", *(f"{name}={shell_word(value)}" for name, value in assigned.items())] if assigned else []
    words += docker_words(launch) if launch.launch.image else []
    words += _lines_of(launch.arguments)
    return [*map(QuotedText, lines), QuotedText("exec " + " \\\n    ".join(words))]


def _host_paths(launch: NodeLaunch) -> Iterator[str]:
    """Paths of this machine that the container mounts or docker reads, as shell words."""
    if not launch.launch.image:
        return
    for volume in launch.volumes:
        match = _SOURCE.match(volume)
        if match is not None and match[1].startswith(("/", "~", "${")):
            yield shell_path(match[1], launch.user)
    for flag in launch.flags:
        if flag.name == "env-file" and flag.value:
            yield shell_word(flag.value)


def _lines_of(words: tuple[str, ...]) -> list[str]:
    """Shell words, a flag on one line with its values."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(shell_word(word))
    return [" ".join(line) for line in lines]


def _health_url(launch: NodeLaunch) -> str:
    return (launch.url or "") + launch.backend.health.path


def _warm_up(launch: NodeLaunch, templates: Templates) -> QuotedText:
    given = launch.command.flags.get("api-key") or launch.env.get("VLLM_API_KEY")
    key = given[0] if isinstance(given, list) else given
    values = {"url": launch.url or "", "model": served_name(launch), "key": str(key) if key else None}
    return templates.render("warm-up.sh.j2", values)


def warms_up(launch: NodeLaunch) -> bool:
    """Whether a chat request can be sent once the engine is ready: it answers, its model's name is known, and the
    command does not say that it serves no chats."""
    flags = launch.command.flags
    chats = flags.get("runner") in (None, "auto", "generate") and flags.get("task") in (None, "auto", "generate")
    vllm = traits_of(launch.backend).launch_flags and launch.command.is_vllm
    return launch.url is not None and chats and vllm and served_name(launch) is not None


def served_name(launch: NodeLaunch) -> str | None:
    """The model's name in requests: --served-model-name, else the model."""
    names = launch.command.flags.get("served-model-name") or launch.command.model
    return str(names[0]) if isinstance(names, list) else names if isinstance(names, str) else None
