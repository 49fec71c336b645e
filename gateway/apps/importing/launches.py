"""Backends with launch blocks, from the commands that start engines: a `docker run`, a service of a compose file, a
command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from gateway.apps.importing.draft import Draft, DraftEntry, ImportNote, Notes, backend_name, unique
from gateway.apps.importing.server_draft import short
from gateway.apps.importing.source import count_of, each_text
from gateway.apps.importing.source_values import Secrets
from gateway.config.problems import Path
from gateway.config.urls import is_address
from gateway.launch.command import DEFAULT_PORT, ServeCommand, is_serving_image, parse
from gateway.launch.docker import DockerRun

PLACEHOLDER = "SPARK_ADDRESS"  # the variable that stands for an address that is not known
# What the unit of a launch block decides itself.
_OF_THE_UNIT = frozenset(
    ("--detach", "--rm", "--restart", "--interactive", "--tty", "--attach", "--pull", "--quiet", "--cidfile"),
)
# Variables by which images without a command line are configured -> the backend's key.
_COUNTS = {"context": "MAX_MODEL_LEN", "slots": "MAX_NUM_SEQS"}
_ARGUMENT = re.compile(r"(?<!\$)\$\{(\d{1,2})\}", re.ASCII)  # ${1}, which no variable of a machine can be
_NODES_MOST = 32  # of one engine
_SAYS_NOTHING = re.compile(r"(vllm|docker|compose|docker-compose|start|run|launch|serve|server|head|main|script)?")
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CHANGED = re.compile(r"(?<!\$)\$\{\w+(?!:-)[^\w}]", re.ASCII)  # ${MODEL##*/}, of a variable that is not known
_GENERIC = re.compile(r"^(spark|vllm|start|run|launch|serve)[-_]+|[-_]+(vllm|serve|launch)$")


class Launches:
    """Collects backends into a draft. `address`: the host on which the engines run, None if not known."""

    def __init__(self, file: str, line_of: Callable[[Path], int | None], address: str | None) -> None:
        self.file, self.address = file, address
        self._given = address
        self._workers: dict[str, None] = {}  # machines on which the file starts workers
        self.draft = Draft()
        self.notes = Notes(file, line_of)
        self.secrets = Secrets(self.notes)

    def finished(self) -> Draft:
        for number, address in enumerate(self._workers, 2):
            for entry in self.draft.nodes.values():
                if entry.keys["address"] == f"${{SPARK_{number}_ADDRESS}}":
                    entry.keys["address"] = address
        self.secrets.clean(self.draft)
        for entry in self.draft.backends.values():
            named = each_text(entry.keys, lambda text: _ARGUMENT.sub(r"${ARGUMENT_\1}", text))
            if named != entry.keys:
                hint = "write the values, or set ARGUMENT_1, ARGUMENT_2, ... where the engine is started"
                self.notes.to_do(("arguments",), "arguments of the script decide about its launches", hint)
            entry.keys = named
        self.draft.notes = [self._clean(note) for note in self.notes.in_order()]
        return self.draft

    def _clean(self, note: ImportNote) -> ImportNote:
        problem, mask = note.problem, self.secrets.mask
        hint = mask(problem.hint) if problem.hint else problem.hint
        return replace(
            note, problem=replace(problem, path=mask(problem.path), message=mask(problem.message), hint=hint)
        )

    # -- one engine ---------------------------------------------------------------------------------------------------

    def container(
        self,
        run: DockerRun,
        path: Path,
        stem: str,
        *,
        env: Mapping[str, str] | None = None,
        env_path: Path | None = None,
        further: Mapping[str, str] | None = None,
    ) -> None:
        """A container. `env`: the caller's variables, for `-e NAME` alone. `env_path`: where its own stand. `further`:
        keys of the backend that the file states."""
        if run.image is None or not run.image.strip() or not run.image.isprintable():
            hint = "does a comment stand before the backslash of a line? it ends the command"
            self.notes.left_out(path, "a docker run without an image", hint)
            return
        for flag in run.unknown:
            self.notes.to_do(path, f"docker has no flag {flag}", "correct it under launch.docker")
        words = self._words([*([run.entrypoint] if run.entrypoint else []), *run.command], path)
        given = {
            name: (env or {}).get(name, f"${{{name}}}") if text is None else text for name, text in run.env.items()
        }
        at = {name: path if env_path is None else (*env_path, name) for name in given}
        variables = self._variables(given, at)
        own = words[0] if run.entrypoint else None
        command = parse(shlex.join(words[1:] if own else words), image=run.image, entrypoint=own)
        stays = run.entrypoint is not None and not is_serving_image(run.image)  # the image may run something itself
        if not _starts_vllm(command, run.image):
            self._other(run, words, variables, path)
            return
        text = shlex.join(words[1:] if own and stays else words)
        launch: dict[str, Any] = {"image": self.secrets.mask(run.image), "command": text or "vllm serve"}
        launch |= {"env": variables} if variables else {}
        volumes = [self._volume(volume, path) for volume in run.volumes if volume.strip() and volume.isprintable()]
        launch |= {"volumes": volumes} if volumes else {}
        docker = " ".join(
            filter(None, (f"--entrypoint={shlex.quote(own or '')}" if stays else "", self._docker(run, path)))
        )
        launch |= {"docker": docker} if docker else {}
        port = self._port(command, path)
        if port is not None and run.network == "bridge" and not run.ports:
            self.notes.to_do(path, f"no port is published: nobody reaches port {port} of the container", "add -p")
        self._backend(launch, command, variables, path, run.name or stem, run.host_port(port or DEFAULT_PORT), further)

    def host(self, words: Sequence[str], env: Mapping[str, str], path: Path, stem: str) -> None:
        """A command that runs on the machine itself."""
        kept = self._words(words, path)
        variables = self._variables(env, dict.fromkeys(env, path))
        text = shlex.join(kept)
        command = parse(text)
        launch = {"command": text, **({"env": variables} if variables else {})}
        self._backend(launch, command, variables, path, stem, self._port(command, path) or DEFAULT_PORT)

    def _variables(self, env: Mapping[str, str], at: Mapping[str, Path]) -> dict[str, str]:
        """The engine's variables as a launch block can hold them. `at`: where each stands."""
        found = {}
        for name, text in env.items():
            if not _VARIABLE.fullmatch(name):
                self.notes.left_out(at[name], "a variable without a usable name")
            elif not text.isprintable():
                self.notes.to_do(at[name], f"{name} has a line break or a control character", "write it by hand")
            else:
                self._computed(name, text, at[name])
                found[name] = self.secrets.value(name, text, at[name])
        return found

    def _words(self, given: Sequence[str], path: Path) -> list[str]:
        """The words of a command, without secrets; a value that a shell computes is noted with its flag."""
        kept = self.secrets.words(given, path)
        flag = "the command"
        for word in kept:
            flag = word.partition("=")[0] if word.startswith("-") else flag
            self._computed(flag, word, path)
        return kept

    def _computed(self, name: str, text: str, path: Path) -> None:
        if "$(" in text or "`" in text or _CHANGED.search(text):
            self.notes.to_do(path, f"{name} has a value that a shell computes", "write the value")

    def _docker(self, run: DockerRun, path: Path) -> str:
        flags = [flag for flag in run.flags if flag.partition("=")[0] not in _OF_THE_UNIT]
        flags += [word for port in run.ports for word in ("-p", port)]
        for flag in flags:
            self._computed(flag.partition("=")[0], flag, path)
            if flag.startswith("--env-file="):
                hint = "write them under launch.env as NAME: ${NAME}"
                self.notes.to_do(path, "the variables of an --env-file are not read", hint)
        return shlex.join(self.secrets.words(flags, path)) if flags else ""

    def _volume(self, volume: str, path: Path) -> str:
        volume = re.sub(r"^\$(HOME\b|\{HOME\})", "~", volume)
        self._computed(f"volume {self.secrets.mask(volume)}", volume, path)
        if volume.startswith((".", "${PWD}")):
            self.notes.to_do(path, f"volume {volume} is relative to a directory", "write an absolute path")
        return self.secrets.mask(volume)

    def _port(self, command: ServeCommand, path: Path) -> int | None:
        """The port on which the engine listens; None when only a shell knows it."""
        if command.port is not None:
            return command.port
        self.notes.to_do(path, "the port is in a variable", "write --port NUMBER into launch.command, and remove url")
        return None

    def _other(self, run: DockerRun, words: list[str], env: Mapping[str, str], path: Path) -> None:
        """A container whose command line starts no vLLM that could be read."""
        model = env.get("SERVED_MODEL_NAME")
        if not words and model and "$" not in model:
            port = run.host_port(DEFAULT_PORT)
            name = self._name(run.name or model, model)
            node, address = self._node(env, path)
            hint = "write launch: with the image and the command that its entrypoint runs, if you want it planned"
            self.notes.changed(path, f"the image of '{name}' decides its command itself: no launch block", hint)
            keys: dict[str, Any] = {"node": node, "url": f"http://{_host(address)}:{port}", "model": model}
            keys |= {
                key: count for key, variable in _COUNTS.items() if (count := count_of(env.get(variable))) is not None
            }
            keys |= _api_key(env.get("VLLM_API_KEY"))
            self.draft.backends[name] = DraftEntry(keys, self._comment(path))
            return
        what = f"runs '{self.secrets.mask(' '.join(words[:2]))}'" if words else "names no command"
        hint = "is the engine started by a script inside? import that script: docker cp CONTAINER:PATH ."
        if "ollama" in (run.image or ""):
            hint = "`gateway init HOST` lists the models of a running Ollama"
        self.notes.left_out(path, f"a container of {self.secrets.mask(str(run.image))} {what}: no vLLM", hint)

    def only_one_of(self, names: Sequence[str], path: Path, why: str = "with some of the others away") -> None:
        """These backends do not always run beside others of the file: no check expects them to be up."""
        for name in names:
            self.draft.backends[name].keys.setdefault("run", "on_demand")
        message = f"{', '.join(names)} runs {why}: run: on_demand"
        self.notes.changed(path, message, "modes say which backends run together")

    # -- the backend --------------------------------------------------------------------------------------------------

    def _backend(
        self,
        launch: dict[str, Any],
        command: ServeCommand,
        env: Mapping[str, str],
        path: Path,
        hint: str,
        port: int,
        further: Mapping[str, str] | None = None,
    ) -> None:
        if command.flags.get("headless"):
            if self.address is not None and self.address != self._given:
                self._workers[self.address] = None
            how = "import the script of the head, and write node: [HEAD, WORKER] under its backend"
            self.notes.left_out(path, "--headless: the worker of an engine on several nodes has no API", how)
            return
        if command.model is None or "<" in command.model:
            self.notes.to_do(path, "the model is not said", "write it behind `vllm serve` in launch.command")
        name = self._name(hint, command.model or hint)
        node, address = self._node({**command.env, **env}, path)
        nodes = self._further_nodes(node, command, path)
        keys: dict[str, Any] = {"node": nodes if len(nodes) > 1 else node}
        in_file = "config" in command.flags and "port" not in command.flags
        if in_file:
            message = "the file of --config is not read: it may say the model, its port and more"
            self.notes.to_do(path, message, "write what it says into launch.command, or correct url and model")
        if command.port is None or in_file:
            keys["url"] = f"http://{_host(address)}:{port}"
        keys["launch"] = launch
        keys |= _api_key(command.flags.get("api-key") or env.get("VLLM_API_KEY"))
        for mistake in command.mistakes:
            fix = f"write {mistake.fix}" if mistake.fix and mistake.fix.startswith("-") else mistake.fix
            self.notes.to_do(path, mistake.message, fix)
        self.draft.backends[name] = DraftEntry({**keys, **(further or {})}, self._comment(path))

    def other(self, engine: str, model: str, path: Path, stem: str, port: int, further: Mapping[str, str]) -> None:
        """A backend of a server whose command line is not read: its address, and what starts and stops it."""
        node, address = self._node({}, path)
        name = self._name(stem, model)
        hint = (
            "its start and stop are kept" if further else "write start: and stop: under it, or launch: with its image"
        )
        self.notes.changed(path, f"the command of '{name}' is not read: no launch block", hint)
        keys = {"engine": engine, "node": node, "url": f"http://{_host(address)}:{port}", "model": model, **further}
        self.draft.backends[name] = DraftEntry(keys, self._comment(path))

    def _name(self, hint: str, model: str) -> str:
        """`vllm-qwen36` -> qwen36; a name that says nothing gives way to the model's."""
        stated = _GENERIC.sub("", hint)
        chosen = short(model) if _SAYS_NOTHING.fullmatch(stated.lower()) else stated
        return unique(backend_name(chosen), self.draft.backends)

    def _comment(self, path: Path) -> list[str]:
        line = self.notes.line_of(path)
        return [f"{self.file}:{line}"] if line else [self.file]

    def _node(self, env: Mapping[str, str], path: Path) -> tuple[str, str]:
        """(name, address) of the node: --address, else VLLM_HOST_IP, else a variable that has to be set."""
        own = env.get("VLLM_HOST_IP", "")
        address = self.address or (own if is_address(own) else None)
        name = "spark" if address is None or is_address(address) else backend_name(address)
        if address is None:
            address = f"${{{PLACEHOLDER}}}"
            hint = f"import again with --address HOST, or put {PLACEHOLDER}=... into .env"
            self.notes.to_do(("nodes",), "the address of the machine is not in the file", hint)
        elif self.address is None:
            self.notes.changed(path, f"VLLM_HOST_IP {address} is taken for the node's address")
        known = next((node for node, entry in self.draft.nodes.items() if entry.keys["address"] == address), None)
        if known is None:
            known = unique(name, self.draft.nodes)
            self.draft.nodes[known] = DraftEntry({"address": address})
        return known, address

    def _further_nodes(self, first: str, command: ServeCommand, path: Path) -> list[str]:
        count = command.flags.get("nnodes", _ranks(command) if _on_ray(command) else 1)
        if not isinstance(count, int) or not 1 < count <= _NODES_MOST:
            return [first]
        names = [first, *(f"{first}-{number}" for number in range(2, count + 1))]
        for number, name in enumerate(names[1:], 2):
            self.draft.nodes.setdefault(name, DraftEntry({"address": f"${{SPARK_{number}_ADDRESS}}"}))
        hint = "put their addresses into nodes; the worker's own script is not needed"
        self.notes.to_do(path, f"the engine spans {count} nodes", hint)
        return names


def _starts_vllm(command: ServeCommand, image: str) -> bool:
    if command.program:
        return command.is_vllm and bool(command.model or command.flags)
    # `--port` alone is a flag of llama-server and of most other servers, too.
    named = "vllm" in image.lower() or command.model is not None
    return bool(command.words) and (is_serving_image(image) or bool(command.flags and named))


def _on_ray(command: ServeCommand) -> bool:
    return command.flags.get("distributed-executor-backend") == "ray"


def _ranks(command: ServeCommand) -> int:
    """The GPUs that the engine asks for, one a Spark."""
    sizes = (command.flags.get(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline", "data"))
    return prod(size for size in sizes if isinstance(size, int) and size > 0)


def _api_key(written: Any) -> dict[str, str]:
    """The key that the engine asks for, as the backend's; vLLM takes several, one is enough."""
    key = written[0] if isinstance(written, list) and written else written
    return {"api_key": key} if isinstance(key, str) and key.startswith("${") else {}


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("$") else address
