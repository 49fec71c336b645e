"""A launch as one bash script with a part for every step of the unit: prepare, run, ready, warm-up, stop, clean.

The engine's words stand in the script as they are, each quoted once. `docker run` gets them as its argument vector, so
no other shell reads them: JSON keeps its quotes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import takewhile

from gateway.apps.fleet.render.docker_run import docker_words, exported
from gateway.apps.fleet.render.launches import NodeLaunch
from gateway.apps.fleet.render.order import Start
from gateway.apps.fleet.render.paths import MARK, env_path
from gateway.apps.fleet.render.unit import STOP_SECONDS, served_name, warms_up
from gateway.apps.fleet.render.words import OTHERWISE, comment_lines, required, shell_path, shell_word
from gateway.fleet.commands import profile_path

# What shellcheck says of words that are meant literally: quotes, backslashes, dollar signs, tildes, typographic quotes.
_LITERAL_WORDS = "SC1003,SC1110,SC1111,SC1112,SC2016,SC2088"
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

_CHOOSE = """\
# Which profile to start with: what the gateway wrote on this machine, as its ssh user. Without that file, {default}.
choose_profile() {
  local file={file}
  spark_profile={rendered}
  if [[ -f $file ]]; then spark_profile=$(head -c 1000 -- "$file"); fi
  case $spark_profile in
    {known}) ;;
    *) refuse "$file names a profile that is not in this script: gateway fleet render, and install it" ;;
  esac
}
"""

_READY = """\
ready() {{where}
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
    if launch.variants:
        yield _choose(launch)
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


def _choose(launch: NodeLaunch) -> str:
    values = {
        "{default}": f"profile {launch.profile}" if launch.profile else "no profile",
        "{file}": profile_path(launch.name),
        "{rendered}": shlex.quote(launch.profile),
        "{known}": " | ".join(shlex.quote(variant.profile) for variant in launch.variants),
    }
    text = _CHOOSE
    for key, value in values.items():
        text = text.replace(key, value)
    return text


def _by_profile(launch: NodeLaunch, lines_of: Callable[[NodeLaunch], list[str]]) -> list[str]:
    """The lines of a function, by the profile that is chosen when it runs; first those that all profiles share."""
    if not launch.variants:
        return lines_of(launch)
    by_profile = {variant.profile: lines_of(variant) for variant in launch.variants}
    every = list(by_profile.values())
    shared = [lines[0] for lines in takewhile(lambda lines: len(set(lines)) == 1, zip(*every, strict=False))]
    if all(lines == shared for lines in every):
        return shared
    cases = [
        line
        for profile, lines in by_profile.items()
        for line in (f"{shlex.quote(profile)})", *(f"  {line}" for line in lines[len(shared) :]), "  ;;")
    ]
    return [*shared, "choose_profile", "case $spark_profile in", *(f"  {line}" for line in cases), "esac"]


def _run(launch: NodeLaunch) -> str:
    return _function("run", _by_profile(launch, _run_lines))


def _run_lines(launch: NodeLaunch) -> list[str]:
    lines = [f"needed {name}" for name in _needed(launch)]
    lines += [f"present {path}" for path in _host_paths(launch)]
    assigned = {name: value for name, value in exported(launch).items() if value != f"${{{name}}}"}
    environ = ["env", *(f"{name}={shell_word(value)}" for name, value in assigned.items())] if assigned else []
    words = [*environ, *(docker_words(launch) if launch.launch.image else [])]
    words += _lines_of(launch.words.arguments)
    return [*lines, "exec " + " \\\n    ".join(words)]


def _needed(launch: NodeLaunch) -> tuple[str, ...]:
    return required(launch.texts)


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
        yield _ready(launch, start)
    if warms_up(launch):
        yield _warm_up(launch)
    if launch.launch.image:
        yield _STOP.replace("{seconds}", str(STOP_SECONDS))
    remove = ["remove_container"] if launch.launch.image else []
    yield _function("clean", [*remove, "if [[ ${SERVICE_RESULT-} == success ]]; then forget_failures; fi"])


def _ready(launch: NodeLaunch, start: Start) -> str:
    def url_of(one: NodeLaunch) -> str:
        return shlex.quote((one.url or "") + one.backend.health.path)

    where = _by_profile(launch, lambda one: [f"url={url_of(one)}"])
    own = len(where) > 1  # a profile changes the port
    text = _READY.replace("{where}", "".join(f"\n  {line}" for line in ("local url", *where)) if own else "")
    return text.replace("{url}", '"$url"' if own else url_of(launch)).replace("{seconds}", str(start.seconds))


def _warm_up(launch: NodeLaunch) -> str:
    return _function("warm_up", _by_profile(launch, _warm_up_lines))


def _warm_up_lines(launch: NodeLaunch) -> list[str]:
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
    return [" \\\n    ".join(curl)]


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
