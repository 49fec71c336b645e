"""A snapshot as the files of its nodes. Pure: nothing is read, written or asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.apps.fleet.render.access import gateway_files, sudoers_file
from gateway.apps.fleet.render.compose import compose_file, compose_notes
from gateway.apps.fleet.render.install import env_template, install_file
from gateway.apps.fleet.render.launches import NodeLaunch, Note, node_launches
from gateway.apps.fleet.render.order import Start, starts
from gateway.apps.fleet.render.paths import COMPOSE, INSTALLER, RenderedFile, env_path, script_path, unit_path
from gateway.apps.fleet.render.script import script_file
from gateway.apps.fleet.render.unit import unit_file
from gateway.config.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Rendering:
    """The files in the order of the nodes, and what the operator should know. `secrets`: values that are written out in
    launch blocks, and so in the files."""

    files: tuple[RenderedFile, ...]
    notes: tuple[Note, ...]
    secrets: frozenset[str] = frozenset()


def render(
    snapshot: Snapshot, profiles: Mapping[str, str] | None = None, weights: Mapping[str, float] | None = None
) -> Rendering:
    """The files of every node that has launch blocks. `profiles`: backend -> the profile to render instead of the plain
    command. `weights`: backend -> GiB that it loads on one node, as far as they are known."""
    launches, notes = node_launches(snapshot, profiles or {})
    order = starts(launches, snapshot, weights or {})
    files: list[RenderedFile] = []
    for node in dict.fromkeys(launch.node.name for launch in launches):
        own = [launch for launch in launches if launch.node.name == node]
        files += _files_of(node, own, order, snapshot)
    files += gateway_files(launch.node for launch in launches)
    further = dict.fromkeys(note for launch in launches for note in compose_notes(launch))
    secrets = frozenset(value for launch in launches for value in launch.secret_values)
    return Rendering(tuple(files), (*notes, *further), secrets)


def _files_of(
    node: str, launches: list[NodeLaunch], order: Mapping[tuple[str, str], Start], snapshot: Snapshot
) -> Iterator[RenderedFile]:
    files = [file for launch in launches for file in _of_launch(launch, order[launch.backend.name, node])]
    compose = compose_file(launches, order, snapshot.modes)
    if compose is not None:
        private = any(launch.secrets and launch.launch.image for launch in launches)
        files.append(RenderedFile(node, COMPOSE, compose, 0o600 if private else 0o644))
    user = launches[0].user
    if user is not None:
        files.append(sudoers_file(node, user, (launch.name for launch in launches)))
    yield from files
    chooser = (user or '"${SUDO_USER:-root}"') if any(launch.backend.profiles for launch in launches) else None
    yield RenderedFile(node, INSTALLER, install_file(node, files, _at_boot(launches, snapshot), chooser), 0o755)


def _of_launch(launch: NodeLaunch, start: Start) -> Iterator[RenderedFile]:
    node = launch.node.name
    yield RenderedFile(node, unit_path(launch.name), unit_file(launch, start), 0o644)
    # A secret that is written out is for root alone; who runs an engine on the host must be able to read the script.
    private = bool(launch.secrets) and (launch.launch.image is not None or launch.user is None)
    yield RenderedFile(node, script_path(launch.name), script_file(launch, start), 0o700 if private else 0o755)
    if launch.variables:
        yield RenderedFile(node, env_path(launch.name), env_template(launch), 0o600, keep=True)


def _at_boot(launches: Iterable[NodeLaunch], snapshot: Snapshot) -> Iterator[str]:
    """Units of the backends that always run; with modes, of the first mode."""
    default = next(iter(snapshot.modes.values()), None)
    for launch in launches:
        if launch.backend.run == "always" if default is None else launch.backend.name in default.backends:
            yield launch.name
