"""`docker run` of a launch: the words up to the image, and which variables come through the environment."""

from __future__ import annotations

import re

from gateway.apps.fleet.render.launches import NodeLaunch, published_port
from gateway.apps.fleet.render.paths import env_path
from gateway.apps.fleet.render.words import shell_path, shell_word
from gateway.launch.docker import DockerFlag
from gateway.launch.secrets import SECRET

# Variables of the engine that would change the tools of the script itself: they are only ever given to docker.
_OF_THE_SCRIPT = re.compile(r"PATH|HOME|IFS|LD_\w+|DOCKER_\w+|BASH\w*|XDG_\w+|\w+_PROXY|\w+_proxy", re.ASCII)


def docker_words(launch: NodeLaunch) -> list[str]:
    """`docker run` up to the image, a line per flag."""
    words = ["docker run", "--rm", f"--name {launch.name}"]
    words += [" ".join(map(shell_word, flag.words())) for flag in docker_flags(launch)]
    if launch.variables:
        words.append(f"--env-file {env_path(launch.name)}")
    hidden = exported(launch)
    words += [
        f"--env {name}" if name in hidden else f"--env {shell_word(f'{name}={value}')}"
        for name, value in launch.env.items()
    ]
    words += [f"--volume {shell_path(volume, launch.user)}" for volume in launch.volumes]
    if launch.words.entrypoint is not None:
        words.append(f"--entrypoint {shell_word(launch.words.entrypoint)}")
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
