"""A launch as one bash script with a part for every step of the unit: prepare, run, ready, warm-up, stop, clean.

The engine's words stand in the script as they are, each quoted once. `docker run` gets them as its argument vector, so
no other shell reads them: JSON keeps its quotes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

from gateway.fleet.render.launches import SECRET, NodeLaunch, published_port
from gateway.fleet.render.order import Start
from gateway.fleet.render.paths import MARK, env_path
from gateway.fleet.render.unit import STOP_SECONDS, served_name, warms_up
from gateway.fleet.render.words import OTHERWISE, comment_lines, required, shell_path, shell_word
from gateway.launch.docker import DockerFlag

# What shellcheck says of words that are meant literally: quotes, backslashes, dollar signs, tildes, typographic quotes.
_LITERAL_WORDS = "SC1003,SC1110,SC1111,SC1112,SC2016,SC2088"
# Variables of the engine that would change the tools of the script itself: they are only ever given to docker.
_OF_THE_SCRIPT = re.compile(r"PATH|HOME|IFS|LD_\w+|DOCKER_\w+|BASH\w*|XDG_\w+|\w+_PROXY|\w+_proxy", re.ASCII)
# The host's side of a mount; a colon inside a reference (${NAME:-/models}) does not end it.
_SOURCE = re.compile(r"((?:\$\{[^{}]*\}|[^:])+):")

_TOP = """\
set -euo pipefail

# No name that a reference of the launch block is likely to have.
readonly spark_unit={name}

say() { printf '%s: %s\\n' "$spark_unit" "$*" >&2; }

# A failure that passes: systemd starts the unit again.
fail() {
  say "$*"
  exit 1
}

# What a restart does not mend. Where it ends `run`, the unit stays down (RestartPreventExitStatus=78).
refuse() {
  say "$*"
  exit 78
}
"""

_ANSWERS = """\
# Whether a server answers at this URL, and not with an error of its own; a certificate is not of interest here.
answers() {
  local code
  code=$(curl --silent --insecure --output /dev/null --max-time 5 --write-out '%{http_code}' "$1") || return 1
  [[ $code == [234]?? ]]
}
"""

_WAIT_FOR = """\
# Engines load one after the other. One that is not started is not waited for.
wait_for() {
  local unit=$1 url=$2 state
  while true; do
    state=$(systemctl show --property=ActiveState --value "$unit" 2>/dev/null) || return 0
    [[ $state == activ* || $state == reloading ]] || return 0
    if answers "$url"; then return 0; fi
    ((SECONDS < {seconds})) || fail "$unit loads first, and does not answer at $url after {seconds} s"
    sleep 5
  done
}
"""

_REMOVE = """\
remove_container() {
  if docker container inspect "$spark_unit" >/dev/null 2>&1; then
    say 'removes the container that was left behind'
    docker rm --force "$spark_unit" >/dev/null
  fi
}
"""

_CLEAN_MEMORY = """\
# Shared memory that engines left behind. What a process has mapped belongs to an engine that runs.
clear_shared_memory() {
  local file used
  used=$(cat /proc/[0-9]*/maps 2>/dev/null | grep -oE '/(psm_|sem\\.mp-)[^ ]+' | sort -u) || true
  for file in /dev/shm/psm_* /dev/shm/sem.mp-*; do
    [[ -e $file ]] || continue
    grep -qxF -- "/${file##*/}" <<<"$used" || rm -f -- "$file"
  done
}

# CPU and GPU share the memory, and an engine takes the page cache for memory in use.
drop_page_cache() {
  sync
  echo 3 >/proc/sys/vm/drop_caches
}
"""

_ZOMBIES = """\
# Processes that have ended and still hold CUDA memory.
zombies() {
  local pid pids
  pids=$(timeout 30 nvidia-smi --query-compute-apps=pid --format=csv,noheader) ||
    fail 'nvidia-smi does not answer: is the driver loaded?'
  while read -r pid; do
    if [[ $pid =~ ^[0-9]+$ && ! -d /proc/$pid ]]; then printf '%s ' "$pid"; fi
  done <<<"$pids"
}

refuse_zombies() {
  local found
  if ! command -v nvidia-smi >/dev/null; then
    say 'nvidia-smi is not there: CUDA memory of dead processes is not looked for'
    return
  fi
  for _ in 1 2 3; do # a process that is just ending is none
    found=$(zombies)
    [[ -n $found ]] || return 0
    sleep 5
  done
  refuse "CUDA memory is still held by processes that are gone (${found% }): reboot this machine first (sudo reboot)"
}
"""

_PRESENT = """\
# docker would make an empty directory of a path that is missing. What is no path is the name of a volume.
present() {
  [[ $1 != /* || -e $1 ]] || refuse "$1 does not exist: mount it, download it, or make it (sudo mkdir -p $1)"
}
"""

_NEEDED = """\
needed() {
  [[ -n ${!1-} ]] || refuse "$1 has no value: write it into {env} and start the unit with systemctl"
}
"""

_READY = """\
ready() {
  until answers {url}; do
    if [[ -n ${MAINPID-} && ! -d /proc/$MAINPID ]]; then
      fail "it ended before it was ready: journalctl -u $spark_unit"
    fi
    ((SECONDS < {seconds})) || fail 'it does not answer after {seconds} s'
    sleep 5
  done
  forget_failures
}
"""

_FORGET = """\
# Only failures in a row count for the start limit of the unit.
forget_failures() {
  systemctl reset-failed "$spark_unit.service" || say 'systemd still counts the starts before this one'
}
"""

_STOP = """\
stop() {
  if docker container inspect "$spark_unit" >/dev/null 2>&1; then
    docker stop -t {seconds} "$spark_unit" >/dev/null
  fi
}
"""


def script_file(launch: NodeLaunch, start: Start) -> str:
    """The text of `launch.sh`."""
    parts = [
        f"#!/bin/bash\n# {MARK} from {launch.path} for {launch.node.name}. Edits here are lost: change routes.yaml.\n"
        + "".join(f"{line}\n" for note in launch.notes for line in comment_lines(f"Note: {note.message}"))
        + f"# The words of an engine are meant literally.\n# shellcheck disable={_LITERAL_WORDS}",
        _TOP.replace("{name}", launch.name),
        *_functions(launch, start),
        _prepare(launch, start),
        _run(launch),
        *_after(launch, start),
        _choice(launch),
    ]
    return "\n".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


def _functions(launch: NodeLaunch, start: Start) -> Iterator[str]:
    if launch.url or start.before:
        yield _ANSWERS
    if start.before:
        yield _WAIT_FOR.replace("{seconds}", str(start.seconds))
    if launch.launch.image:
        yield _REMOVE
    yield _CLEAN_MEMORY
    yield _ZOMBIES
    yield _FORGET
    if any(_host_paths(launch)):
        yield _PRESENT
    if "$(otherwise " in _run(launch):
        yield OTHERWISE
    if _needed(launch):
        yield _NEEDED.replace("{env}", env_path(launch.name))


def _prepare(launch: NodeLaunch, start: Start) -> str:
    steps = [f"wait_for {one.unit}.service {shlex.quote(one.url)}" for one in start.before]
    steps += ["remove_container"] if launch.launch.image else []
    steps += ["refuse_zombies", "clear_shared_memory", "drop_page_cache"]
    return _function(
        "prepare", ["((EUID == 0)) || refuse 'prepare needs root: the unit runs it as ExecStartPre=+'", *steps]
    )


def _run(launch: NodeLaunch) -> str:
    lines = [f"needed {name}" for name in _needed(launch)]
    lines += [f"present {path}" for path in _host_paths(launch)]
    assigned = {name: value for name, value in _exported(launch).items() if value != f"${{{name}}}"}
    exported = ["env", *(f"{name}={shell_word(value)}" for name, value in assigned.items())] if assigned else []
    words = [*exported, *(_docker(launch) if launch.launch.image else [])]
    words += _lines_of(launch.words.arguments)
    return _function("run", [*lines, "exec " + " \\\n    ".join(words)])


def _docker(launch: NodeLaunch) -> list[str]:
    """`docker run` up to the image, a line per flag."""
    words = ["docker run", "--rm", f"--name {launch.name}"]
    words += [" ".join(map(shell_word, flag.words())) for flag in docker_flags(launch)]
    if launch.variables:
        words.append(f"--env-file {env_path(launch.name)}")
    exported = _exported(launch)
    words += [
        f"--env {name}" if name in exported else f"--env {shell_word(f'{name}={value}')}"
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


def _exported(launch: NodeLaunch) -> dict[str, str]:
    """Variables that come through the environment, where no `ps` shows them: on the host all of them, for a container
    those that refer to others or look like a secret."""
    if not launch.launch.image:
        return dict(launch.env)
    hidden = {k: v for k, v in launch.env.items() if "${" in v or SECRET.search(k)}
    return {name: value for name, value in hidden.items() if not _OF_THE_SCRIPT.fullmatch(name)}


def _needed(launch: NodeLaunch) -> tuple[str, ...]:
    flags = [flag.value or "" for flag in launch.flags]
    return required([launch.launch.image or "", *launch.words.all(), *launch.volumes, *flags, *launch.env.values()])


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


def _after(launch: NodeLaunch, start: Start) -> Iterator[str]:
    if launch.url:
        url = shlex.quote(launch.url + launch.backend.health.path)
        yield _READY.replace("{url}", url).replace("{seconds}", str(start.seconds))
    if warms_up(launch):
        yield _warm_up(launch)
    if launch.launch.image:
        yield _STOP.replace("{seconds}", str(STOP_SECONDS))
    remove = ["remove_container"] if launch.launch.image else []
    yield _function("clean", [*remove, "if [[ ${SERVICE_RESULT-} == success ]]; then forget_failures; fi"])


def _warm_up(launch: NodeLaunch) -> str:
    """The first request compiles kernels, which takes up to a minute: it is sent before anybody waits for it."""
    body = {"model": served_name(launch), "messages": [{"role": "user", "content": "ping"}], "max_tokens": 3}
    insecure = " --insecure" if (launch.url or "").startswith("https:") else ""
    curl = [
        f"curl --silent --show-error --fail{insecure} --output /dev/null --max-time 300",
        "--header 'Content-Type: application/json'",
        f"--data {shell_word(json.dumps(body, ensure_ascii=False))}",
        f"{shlex.quote(f'{launch.url}/v1/chat/completions')} ||",
        "say 'the warm-up request failed: the first request will be slow'",
    ]
    key = _api_key(launch)
    if key is not None:
        curl[0] = f"printf 'Authorization: Bearer %s\\n' {shell_word(key)} |\n    {curl[0]} --header @-"
    return _function("warm_up", [" \\\n    ".join(curl)])


def _api_key(launch: NodeLaunch) -> str | None:
    given = launch.command.flags.get("api-key") or launch.env.get("VLLM_API_KEY")
    key = given[0] if isinstance(given, list) else given
    return str(key) if key else None


def _choice(launch: NodeLaunch) -> str:
    steps = {"prepare": "prepare", "run": "run"}
    steps |= {"ready": "ready"} if launch.url else {}
    steps |= {"warm-up": "warm_up"} if warms_up(launch) else {}
    steps |= {"stop": "stop"} if launch.launch.image else {}
    steps["clean"] = "clean"
    cases = [f"  {step}) {function} ;;" for step, function in steps.items()]
    return "\n".join(["case ${1-} in", *cases, f'  *) refuse "usage: $0 {"|".join(steps)}" ;;', "esac"])


def _function(name: str, lines: list[str]) -> str:
    return f"{name}() {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"
