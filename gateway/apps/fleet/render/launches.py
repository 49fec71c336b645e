"""What is launched on which node: one `NodeLaunch` per backend and node, complete before any file is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gateway.apps.control.unit_commands import unit_name
from gateway.apps.fleet.lint.catalog import catalog_of
from gateway.apps.fleet.render.words import literals, pieces, referenced
from gateway.config.snapshot import Backend, Launch, Node, Snapshot
from gateway.config.urls import is_address
from gateway.launch.command import MASTER_PORT, ServeCommand, is_serving_image, with_changes
from gateway.launch.docker import DockerFlag
from gateway.launch.secrets import SECRET, SECRET_FLAGS, is_secret_flag
from gateway.launch.words import assignments

_FOR_A_SHELL = re.compile(r"~/|\$[A-Za-z_]\w*(/|:|$)", re.ASCII)  # by hand, a shell would replace it
_USER = re.compile(r"[a-z_][a-z0-9_-]*")
# What the unit decides: the container has its name, ends with it, and is started again by systemd alone.
_OF_THE_UNIT = ("name", "rm", "detach", "interactive", "tty", "restart", "cidfile", "attach", "sig-proxy")
_NOWHERE = ("0.0.0.0", "::", "localhost", "127.0.0.1", "::1", "")


@dataclass(frozen=True, slots=True)
class Note:
    """What the operator should know. `path`: dotted, in routes.yaml. An error keeps the backend from being rendered."""

    path: str
    message: str
    severity: Literal["error", "warning"] = "warning"


class CannotRender(Exception):
    """Why a backend has no files: its arguments are the path and the message of a Note."""


@dataclass(frozen=True)
class NodeLaunch:
    """One backend on one of its nodes, in files named `name`.

    `rank`: the position of the node among the backend's `nodes`, 0 = the head. `arguments`: what follows the image, or
    on the host the program with its arguments. `entrypoint`: what replaces the image's own, None = it stays. `flags`,
    `volumes`: for `docker run`. `env`: the engine's variables. `url`: where the engine answers, as seen from the
    node; None = it answers nowhere (a worker). `user`: who runs an engine of the host, and whose home `~` is; None =
    root. `profile`: the one that it is rendered with, "" = none; `variants`: the same launch with each profile and with
    none, empty where there are no profiles."""

    backend: Backend
    launch: Launch
    command: ServeCommand
    name: str
    node: Node
    nodes: int
    rank: int
    arguments: tuple[str, ...]
    entrypoint: str | None
    env: Mapping[str, str]
    flags: tuple[DockerFlag, ...]
    volumes: tuple[str, ...]
    port: int | None
    url: str | None
    user: str | None
    profile: str = ""
    notes: tuple[Note, ...] = field(default=())
    variants: tuple[NodeLaunch, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """What is run: the entrypoint, where it is replaced, with the arguments."""
        return self.arguments if self.entrypoint is None else (self.entrypoint, *self.arguments)

    @property
    def path(self) -> str:
        return f"backends.{self.backend.name}.launch"

    @property
    def is_worker(self) -> bool:
        return self.rank > 0

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables that the launch refers to: the lines of its EnvironmentFile."""
        own = referenced(self.texts)
        return tuple(dict.fromkeys([*own, *(name for variant in self.variants for name in variant.variables)]))

    @property
    def texts(self) -> list[str]:
        """Everything that may refer to a variable."""
        flags = (flag.value or "" for flag in self.flags)
        return [self.launch.image or "", *self.words, *self.volumes, *flags, *self.env.values()]

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of variables and flags whose secret value is written out in the launch block, also as the default of a
        reference."""
        found = [name for name, value in self.env.items() if SECRET.search(name) and literals(value)]
        flags = [flag for flag, value in self._secret_flags.items() if literals(value)]
        further = (name for variant in self.variants for name in variant.secrets)
        return tuple(dict.fromkeys([*found, *(f"--{flag}" for flag in flags), *further]))

    @property
    def secret_values(self) -> frozenset[str]:
        """The values of `secrets`."""
        every = (self, *self.variants)
        found = [one.env.get(name) or one._secret_flags.get(name[2:]) for one in every for name in one.secrets]
        return frozenset(text for value in found for text in literals(value))

    @property
    def _secret_flags(self) -> dict[str, Any]:
        """Flags whose values are secrets, with those that the engine does not have and that may be meant for one."""
        known = {flag: self.command.flags.get(flag) for flag in SECRET_FLAGS}
        return known | {flag: list(words) for flag, words in self.command.unknown.items() if is_secret_flag(flag)}


@dataclass(frozen=True, slots=True)
class UnitStart:
    """`seconds` until the engine must answer; `before`: the units that load first on its node, the biggest first, with
    the URL of the liveness check of each."""

    seconds: int
    before: Mapping[str, str]


def node_launches(
    snapshot: Snapshot, profiles: Mapping[str, str], refused: Mapping[str, str] | None = None
) -> tuple[tuple[NodeLaunch, ...], tuple[Note, ...]]:
    """Every launch block on each of its nodes, in the order of the file, and the notes. `profiles`: backend -> name of
    the profile to render it with. `refused`: backend -> the error for which it is not rendered."""
    launches: list[NodeLaunch] = []
    notes: list[Note] = []
    taken = dict.fromkeys(("spark-gateway", "spark-gateway-next"), "the gateway's own unit")
    for backend in snapshot.backends.values():
        if backend.launch is None or not backend.launch.starts:
            continue
        try:
            name = unit_name(backend.name)
            if name in taken:
                raise CannotRender(f"backends.{backend.name}", f"its unit would have the name of {taken[name]}: {name}")
            found = tuple(_on_nodes(snapshot, backend, backend.launch, profiles.get(backend.name)))
            if refused and backend.name in refused:
                raise CannotRender(f"backends.{backend.name}", refused[backend.name])
        except CannotRender as error:
            path, message = error.args
            notes.append(Note(path, message, "error"))
            continue
        taken[name] = f"backend {backend.name}"
        launches += found
        notes += dict.fromkeys(note for launch in found for note in launch.notes)
    return tuple(launches), tuple(notes)


def _on_nodes(snapshot: Snapshot, backend: Backend, launch: Launch, profile: str | None) -> Iterator[NodeLaunch]:
    path = f"backends.{backend.name}.launch"
    if not backend.nodes:
        raise CannotRender(f"backends.{backend.name}", "has no `node`, so there is no machine to render it for")
    command = _command(backend, launch, profile)
    if not (launch.image or command.words):
        raise CannotRender(f"{path}.command", "has no word that is run: write the program and its arguments")
    if not launch.image and command.words[:1] and command.words[0].startswith("-"):
        raise CannotRender(
            f"{path}.command", "begins with a flag: on the host itself (no `image`) a program comes first"
        )
    nodes = [snapshot.nodes[name] for name in backend.nodes]
    # The flags of a rank can only be appended to words that are vLLM's own, not to those of a shell that starts vLLM.
    if len(nodes) > 1 and not (command.is_vllm and command.parts.script is None):
        raise CannotRender(
            f"{path}.command", "only a command line of vLLM itself can be split over nodes (no `bash -c`, no script)"
        )
    for rank, node in enumerate(nodes):
        made = replace(_on_node(snapshot, backend, launch, command, nodes, rank), profile=profile or "")
        variants = tuple(_variants(snapshot, backend, launch, nodes, rank))
        for one in (made, *variants):
            _check_references(one)
        yield replace(made, node=node, notes=(*made.notes, *_notes(made)), variants=variants)


def _variants(
    snapshot: Snapshot, backend: Backend, launch: Launch, nodes: list[Node], rank: int
) -> Iterator[NodeLaunch]:
    """The launch on one node without a profile, and with each; nothing where there are none."""
    for profile in ("", *backend.profiles) if backend.profiles else ():
        command = _command(backend, launch, profile or None)
        yield replace(_on_node(snapshot, backend, launch, command, nodes, rank), node=nodes[rank], profile=profile)


def _command(backend: Backend, launch: Launch, profile: str | None) -> ServeCommand:
    if profile is None:
        return launch.parsed
    if profile not in backend.profiles:
        known = ", ".join(backend.profiles) or "none"
        raise CannotRender(f"backends.{backend.name}.profiles", f"has no profile '{profile}' (there are: {known})")
    return with_changes(launch.parsed, backend.profiles[profile])


def _on_node(
    snapshot: Snapshot, backend: Backend, launch: Launch, command: ServeCommand, nodes: list[Node], rank: int
) -> NodeLaunch:
    container = launch.container
    if container.problem is not None:
        raise CannotRender(f"backends.{backend.name}.launch.docker", container.problem)
    node = nodes[rank]
    login, at, _ = (node.ssh or "").partition("@")
    several = len(nodes) > 1
    if several:
        command = _of_rank(backend, command, nodes, rank)
    own = own_entrypoint(snapshot, launch)
    before, start = assignments(command.words)
    arguments, entrypoint = _engine_words(command, command.words[start:], own)
    given = {name: f"${{{name}}}" if value is None else value for name, value in container.env.items()}
    env = {**given, **launch.env, **before}
    if several and node.address and not _differs_by_node(env):
        env["VLLM_HOST_IP"] = node.address
    port = command.port if command.is_vllm else backend.origin[2] if backend.url else None
    made = NodeLaunch(
        backend=backend,
        launch=launch,
        command=command,
        name=unit_name(backend.name),
        node=node,
        nodes=len(nodes),
        rank=rank,
        arguments=arguments,
        entrypoint=entrypoint,
        env=env,
        flags=tuple(f for f in container.given if f.name not in (*_OF_THE_UNIT, "env", "volume", "entrypoint")),
        volumes=launch.mounts,
        port=port,
        url=None,
        user=login if at and _USER.fullmatch(login) and login != "root" else None,
    )
    notes = tuple(_notes_of_container(made, own))
    return replace(made, url=None if rank else _url(made), notes=notes)


def own_entrypoint(snapshot: Snapshot, launch: Launch) -> str | None:
    """What the image runs by itself in front of the words: as the file states it, else as the catalogue has it; None
    where neither says it."""
    if launch.entrypoint is not None or launch.image is None:
        return launch.entrypoint
    facts = catalog_of(snapshot).image(launch.image)
    return "vllm serve" if is_serving_image(launch.image) else facts.entrypoint if facts is not None else None


def _engine_words(command: ServeCommand, words: tuple[str, ...], own: str | None) -> tuple[tuple[str, ...], str | None]:
    """(the arguments, what replaces the image's own entrypoint) of a command, by what its image runs itself (`own`).

    An image whose entrypoint is `vllm serve` gets the arguments alone; another program there replaces the entrypoint.
    One that is known to run nothing itself gets a `vllm serve` in front of bare arguments. Any other runs the words as
    they are.
    """
    if command.entrypoint is not None:
        return words[1:] if command.entrypoint else words, command.entrypoint
    if command.image is None or not words:
        return words, None
    bare = not command.program
    if own == "vllm":
        return words[1:] if words[0] == "vllm" else words, None
    if own != "vllm serve":
        return ("vllm", "serve", *words) if bare and own == "none" else words, None
    if bare:
        return words, None
    if words[:2] == ("vllm", "serve"):
        return words[2:], None
    return words[1:], words[0]


def _differs_by_node(env: Mapping[str, str]) -> bool:
    """Whether the operator's own VLLM_HOST_IP is a reference, which each node replaces by its own value."""
    return "${" in env.get("VLLM_HOST_IP", "")


def _of_rank(backend: Backend, command: ServeCommand, nodes: list[Node], rank: int) -> ServeCommand:
    """The command of one node of several that make one engine. What the command states of the group stays; which
    position the node has does not."""
    changes: dict[str, Any] = {}
    if "nnodes" not in command.flags:
        changes["nnodes"] = len(nodes)
    changes["node-rank"] = rank
    if "master-addr" not in command.flags:
        if nodes[0].address is None:
            raise CannotRender(
                f"nodes.{nodes[0].name}", f"has no `address`, which the other nodes of {backend.name} need"
            )
        changes["master-addr"] = nodes[0].address
    if "master-port" not in command.flags:
        changes["master-port"] = MASTER_PORT
    return with_changes(command, {**changes, "headless": True if rank else "none"})


def _url(launch: NodeLaunch) -> str | None:
    """Where the head answers, as the head itself sees it: from the launch block, not from the gateway's `url`, which
    may lead through a proxy."""
    port = published_port(launch)
    if port is None:
        return None
    host = str(launch.command.flags.get("host") or "")
    host = "127.0.0.1" if host in _NOWHERE or "${" in host else host
    scheme = "https" if launch.command.flags.get("ssl-certfile") else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def published_port(launch: NodeLaunch) -> int | None:
    """The port of the node at which the engine is reached: `-p 8001:8000` changes it."""
    return None if launch.port is None else launch.launch.host_port(launch.port)


def _check_references(launch: NodeLaunch) -> None:
    try:
        for text in launch.texts:
            list(pieces(text))
    except ValueError as error:
        hint = "write ${NAME} and put the value into the EnvironmentFile; a literal '${' is '$${'"
        raise CannotRender(launch.path, f"{error}: {hint}") from None


# -- notes ------------------------------------------------------------------------------------------------------------


def _notes_of_container(launch: NodeLaunch, own: str | None) -> Iterator[Note]:
    given = launch.launch.container.given
    left_out = [flag.option for flag in given if flag.name in _OF_THE_UNIT and flag.name not in ("rm", "detach")]
    if left_out:
        yield Note(f"{launch.path}.docker", f"left out, the unit sees to it: {', '.join(left_out)}")
    image = launch.launch.image
    if image is not None and own is None and launch.command.entrypoint is None:
        message = f"what {image} runs by itself is not known: the words of `command` stay as they are"
        yield Note(f"{launch.path}.entrypoint", f"{message} (vllm serve, vllm, or none: then nothing is said)")


def _notes(launch: NodeLaunch) -> Iterator[Note]:
    for name in launch.secrets:
        yield Note(launch.path, f"{name} is written out and would be in the rendered files: write a ${{NAME}}")
    for text in _for_a_shell(launch):
        yield Note(launch.path, f"'{text}' stays as it is, no shell reads it: write ${{NAME}}, or the path")
    if launch.url is None and not launch.is_worker:
        yield Note(launch.path, "its port is not known: the unit cannot wait until it is ready")
    for volume in launch.volumes:
        if volume.startswith(("./", "../")):
            yield Note(f"{launch.path}.volumes", f"'{volume}' is relative, and a unit runs in /")
    if not launch.launch.image and launch.user is None:
        yield Note(f"nodes.{launch.node.name}.ssh", f"names no user, so {launch.name} runs as root on the host")
    if launch.nodes > 1:
        yield from _notes_of_nodes(launch)


def _for_a_shell(launch: NodeLaunch) -> Iterator[str]:
    """Words, values and mounts of which a shell would replace a part if the command were typed by hand."""
    volumes = (volume for volume in launch.volumes if not volume.startswith("~/"))
    for text in (*launch.words, *launch.env.values(), *volumes):
        if _FOR_A_SHELL.match(text) and text not in launch.secret_values:
            yield text


def _notes_of_nodes(launch: NodeLaunch) -> Iterator[Note]:
    unset = [name for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if not launch.env.get(name)]
    if unset:
        yield Note(
            f"{launch.path}.env",
            f"{' and '.join(unset)} not set: the nodes may talk over the slow network instead of their direct link",
        )
    written = launch.launch.env.get("VLLM_HOST_IP")
    if written and "${" not in written:
        yield Note(f"{launch.path}.env", "VLLM_HOST_IP is set per node, to the `address` of each node")
    if not _differs_by_node(launch.env) and not is_address(launch.node.address):
        yield Note(f"nodes.{launch.node.name}.address", "is no IP address, and VLLM_HOST_IP must be one: write it")
