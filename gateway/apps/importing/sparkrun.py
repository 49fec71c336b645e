"""A recipe of sparkrun, Spark Arena or eugr's spark-vllm-docker: one model in one container, on one Spark or several.

`command` has `{placeholders}`, whose values `defaults` holds. A recipe that says nothing but `defaults` leaves the
command to the runtime, which makes it of them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from gateway.apps.fleet.preflight.host import CONTAINER_HOME
from gateway.apps.importing.draft import Draft
from gateway.apps.importing.launches import Launches
from gateway.apps.importing.source import (
    count_of,
    data_of,
    is_true,
    listed,
    mapping,
    note_unread,
    read_source,
    scalar_of,
    text_of,
)
from gateway.config.document import read_document
from gateway.config.problems import Report
from gateway.config.sources import read_file
from gateway.launch.command import parse, with_changes
from gateway.launch.docker import DockerFlag, DockerRun
from gateway.launch.flags import vllm_flags
from gateway.launch.words import split

_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\}", re.ASCII)
_CACHE = "~/.cache/huggingface"
_ROUNDS = 4  # a default may stand in another one
_MOST_TEXT = 64 * 1024


def is_recipe(data: dict[str, Any]) -> bool:
    """Whether the keys are those of a recipe."""
    return "model" in data and ("recipe_version" in data or {"container", "command"} <= data.keys())


def convert(text: str, file: str, address: str | None = None) -> Draft:
    """The draft of a recipe. Raises ConfigError for broken YAML."""
    source = read_source(text, file, last_counts=True)
    launches = Launches(file, source.report.line, address)
    data, notes = source.data, launches.notes
    notes.check_size(text)
    model, runtime = text_of(data.get("model")) or "", text_of(data.get("runtime")) or "vllm"
    values = {"model": model, "model_path": model, **mapping(data.get("defaults"))}
    script = _filled(text_of(data.get("command")) or "", values)
    name = text_of(data.get("name")) or PurePath(file).stem
    engines = data_of("formats")["sparkrun"]["engines"]
    server = next((kind for word, kind in engines.items() if runtime.startswith(word)), None)
    note_unread(notes, (), data, "sparkrun", "top")
    if server is not None:
        port = count_of(values.get("port")) or (8080 if server == "llamacpp" else 30000)
        served = text_of(values.get("served_model_name")) or model
        launches.other(server, served, ("runtime",), PurePath(file).stem, port, _with_sparkrun(file))
        return launches.finished()
    words = _words(script) if script else _of_runtime(values, launches)
    words = _for_nodes(words, data, launches)
    for one in dict.fromkeys(_PLACEHOLDER.findall(" ".join(words))):
        notes.to_do(("command",), f"{{{one}}} has no value in defaults", "write its value in launch.command")
    image = text_of(data.get("container"))
    if image is None:
        image = "vllm-node"
        notes.to_do(("model",), "the recipe names no container", "write the image that the runtime takes")
    env = {str(key): _filled(text_of(value) or "", values) for key, value in mapping(data.get("env")).items()}
    given = [DockerFlag("env", f"{key}={text}") for key, text in env.items()]
    given += [DockerFlag("network", "host"), DockerFlag("gpus", "all"), DockerFlag("ipc", "host")]
    own = [shown for one in listed(data.get("volumes")) if (shown := text_of(one))]
    shared = f"{_CACHE}:{CONTAINER_HOME}{_CACHE[1:]}"
    given += [DockerFlag("volume", one) for one in dict.fromkeys((*own, shared))] + [DockerFlag("name", name)]
    further = {}
    if mods := [shown for one in listed(data.get("mods")) if (shown := text_of(one))]:
        further = _with_sparkrun(file)
        message = f"mods are put into the container before it starts: {', '.join(mods)}"
        notes.to_do(("mods",), message, "the launch block alone lacks them; start: and stop: let sparkrun do it")
    if listed(data.get("build_args")):
        notes.changed(
            ("build_args",), "the image is built with these, before it is started", "docker pull or build it first"
        )
    notes.changed(
        ("container",), "host network, all GPUs and ~/.cache/huggingface are what the recipe's runner gives it"
    )
    env_path = ("env",) if isinstance(data.get("env"), dict) else None
    launches.container(
        DockerRun(image, tuple(given), tuple(words)), ("command",) if script else ("model",), name, env_path=env_path,
        further=further,
    )  # fmt: skip
    return launches.finished()


def _words(script: str) -> list[str]:
    """The words of a command; one of several statements stays a script, whose variables are the container's."""
    words = list(split(script).words)
    command = parse(shlex.join(words))
    if command.is_vllm and command.parts.before == command.program:
        return words
    return ["bash", "-c", script.strip().replace("${", "$${")]


def _with_sparkrun(file: str) -> dict[str, str]:
    recipe = shlex.quote(PurePath(file).stem)
    return {"start": f"sparkrun run {recipe} --ensure", "stop": f"sparkrun stop {recipe}"}


def _filled(text: str, values: dict[str, Any]) -> str:
    """The text with its placeholders filled in; where it writes `{{` for a brace, as Python's format does, that is
    one."""
    doubled = "{{" in text

    def value(match: re.Match[str]) -> str:
        given = scalar_of(values.get(match[1]))
        return match[0] if given is None else given

    for _ in range(_ROUNDS):
        if len(filled := _PLACEHOLDER.sub(value, text)) > _MOST_TEXT or filled == text:
            break
        text = filled
    return text.replace("{{", "{").replace("}}", "}") if doubled else text


def _of_runtime(values: dict[str, Any], launches: Launches) -> list[str]:
    """The command that vLLM's runtime makes of the defaults."""
    words, names = ["vllm", "serve", text_of(values.get("model")) or ""], data_of("formats")["sparkrun"]["flags"]
    for key, value in values.items():
        if key in ("model", "model_path"):
            continue
        flag = vllm_flags().flags.get(names.get(key, key.replace("_", "-")))
        text = text_of(value)
        if flag is None or (text is None and not isinstance(value, bool)):
            launches.notes.left_out(("defaults", key), "is no flag of vLLM")
        elif flag.kind == "switch":
            words += [f"--{flag.name}"] if is_true(value) else []
        else:
            words += [f"--{flag.name}", _filled(text or str(value).lower(), values)]
    launches.notes.changed(("defaults",), "the recipe has no command: it is made of its defaults")
    return words


def _for_nodes(words: list[str], data: dict[str, Any], launches: Launches) -> list[str]:
    """The command for as many Sparks as it has ranks: one GPU each. Ray is left out, since vLLM's own ranks do."""
    command = parse(shlex.join(words))
    flags, ranks = command.flags, 1
    for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"):
        count = flags.get(name, 1)
        ranks *= count if isinstance(count, int) and count > 0 else 1
    if is_true(data.get("solo_only")):
        ranks = 1
    elif ranks == 1 and is_true(data.get("cluster_only")):
        launches.notes.to_do(("cluster_only",), "how many Sparks it needs is not said", "write node: [HEAD, WORKER]")
    changes: dict[str, Any] = {}
    if flags.get("distributed-executor-backend") == "ray":
        changes["distributed-executor-backend"] = "none"
        launches.notes.changed(("command",), "Ray is left out: the ranks of vLLM itself need none", "see docs/fleet.md")
    if ranks > 1:
        changes |= {"nnodes": ranks} if "nnodes" not in flags else {}
        launches.notes.changed(("defaults",), f"{ranks} ranks are {ranks} Sparks; on one: --tensor-parallel-size 1")
    return list(with_changes(command, changes).words) if changes else words


# -- containers that it started on this machine -----------------------------------------------------------------------


_HERE = ("localhost", "127.0.0.1", "::1")
_PREFIX = "sparkrun_"
_SECONDS = 5.0
_MOST = 20
_MOST_BYTES = 64 * 1024  # of a job's file
_JOBS = Path("~/.cache/sparkrun/jobs")


def sparkrun_containers() -> list[str]:
    """The names of the running containers that sparkrun started; none without docker."""
    docker = shutil.which("docker")
    if docker is None:
        return []
    command = [docker, "ps", "--filter", f"name={_PREFIX}", "--format", "{{.Names}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    names = [name.strip() for name in done.stdout.splitlines()]
    return [name for name in names if name.startswith(_PREFIX) and name.isprintable()][:_MOST]


def recipe_of(container: str, jobs: Path = _JOBS) -> str | None:
    """The recipe of a container, as sparkrun noted it when it started the job; None where it did not."""
    job = container.removeprefix(_PREFIX).partition("_")[0]
    if not re.fullmatch(r"\w+", job):
        return None
    try:
        data = read_document(read_file(jobs.expanduser() / f"{job}.yaml", _MOST_BYTES).decode("utf-8"), Report(job))
    except (OSError, ValueError):
        return None
    recipe = text_of(mapping(data).get("recipe"))
    return recipe if recipe is not None and recipe.isprintable() else None


def note_sparkrun(draft: Draft, names: list[str], recipe: str | None) -> None:
    """How sparkrun starts and stops the vLLM of this machine: under its keys where the recipe is known, else beside
    it."""
    here = [
        entry
        for entry in draft.backends.values()
        if urlsplit(str(entry.keys.get("url") or "")).hostname in _HERE and "engine" not in entry.keys
    ]
    if not names or len(here) != 1:
        return
    word = shlex.quote(recipe) if recipe is not None else "RECIPE"
    commands = {"start": f"sparkrun run {word} --ensure", "stop": f"sparkrun stop {word}"}
    here[0].comment = [*here[0].comment, f"Started by sparkrun: {', '.join(names)}"]
    if recipe is not None:
        here[0].keys |= commands
    else:
        lines = [f"  {key}: {command}" for key, command in commands.items()]
        here[0].comment += ["So that the gateway can start and stop it:", *lines]
