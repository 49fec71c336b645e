"""The order of a pull: look at the nodes, download once, copy from node to node, verify."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from gateway.apps.control.memory.model_files import keep
from gateway.apps.control.unit_commands import with_credentials
from gateway.apps.fleet.preflight.expect import expected_weights
from gateway.apps.fleet.preflight.host import ExpectedBackend, gib
from gateway.apps.fleet.preflight.run import program, ssh_command
from gateway.apps.fleet.pulling.files import Broken
from gateway.apps.fleet.pulling.node import MARK
from gateway.cli.config_edits import CannotEdit, text_of, with_entry, write_config
from gateway.cli.options import complete_backend, config_option, examples, fail, load_or_exit
from gateway.config.snapshot import Backend, Node, Snapshot
from gateway.launch.flags import is_reference
from gateway.printable import visible

MODULES = ("preflight.host", "preflight.checks_weights", "pulling.files", "pulling.node")
_SILENCE = 600.0  # seconds without a line after which a step is given up: docker says nothing while it unpacks
_MOST_LINE = 64 * 1024 * 1024
_EVERY = 10.0  # seconds between two lines of progress where the output is no terminal


def run_step(node: Node, job: Mapping[str, Any], progress: Callable[[int, int], None]) -> dict[str, Any]:
    """The result of a step on a node. Raises Broken."""
    assert node.ssh is not None
    lines = _lines(with_credentials(ssh_command(node.ssh)), program(MODULES, json.dumps(job)))
    said = ""
    for line in lines:
        if not line.startswith(MARK):
            said = line.strip() or said
            continue
        try:
            told = json.loads(line.removeprefix(MARK))
        except ValueError:
            continue
        if isinstance(told.get("result"), dict):
            if "problem" in told["result"]:
                raise Broken(str(told["result"]["problem"]))
            return dict(told["result"])
        if isinstance(told.get("done"), int) and isinstance(told.get("total"), int):
            progress(told["done"], told["total"])
    raise Broken(f"ssh {node.ssh}: {visible(said)[:200] or 'no answer'}")


def _lines(argv: Sequence[str], text: str) -> Any:
    """The lines that a command writes, as they come."""
    try:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise Broken(f"{argv[0]} cannot be run: {error.strerror or error}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    rest = b""
    try:
        try:
            process.stdin.write(text.encode())
            process.stdin.close()
        except OSError:  # it has ended already, and says why
            pass
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(_SILENCE):
                chunk = os.read(process.stdout.fileno(), 65536)
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in lines)
                if not chunk or len(rest) > _MOST_LINE:
                    break
        if rest:
            yield rest.decode("utf-8", "replace")
    finally:
        process.kill()
        process.wait()


@dataclass(slots=True)
class Meter:
    """Shows the progress of one step, with the time that is left."""

    what: str
    began: float = 0.0
    first: int = 0
    said: float = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.began:
            self.began, self.first = now, done
        terminal = sys.stderr.isatty()
        if terminal or now - self.said >= _EVERY:
            self.said = now
            begin = "\r" if terminal else ""
            click.echo(f"{begin}{self.line(done, total, now)}", err=True, nl=not terminal)

    def line(self, done: int, total: int, now: float) -> str:
        passed = now - self.began
        speed = (done - self.first) / passed if passed > 0 else 0.0
        if total <= 0:
            return f"  {self.what}: {passed:.0f} s"
        shown = f"  {self.what}: {min(done / total, 1):4.0%} of {total / 2**30:.1f} GiB"
        if speed <= 0:
            return shown
        return f"{shown}, {speed / 1e6:.0f} MB/s, {_duration(max(0, total - done) / speed)} left   "

    def end(self) -> None:
        if self.began and sys.stderr.isatty():
            click.echo("", err=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


_SPARE = 5 * 2**30  # bytes of disk that stay free
Looks = list[tuple[Node, dict[str, Any]]]  # what each node has


Pulled = tuple[
    str, str, str, int
]  # a model that is on all targets, its commit ("" of a folder), config, bytes of weights


@dataclass(frozen=True, slots=True)
class Pull:
    """One pull: the parts of a backend's launch, onto `targets`; `others` may have it already. `hashes`: contents are
    compared, not only sizes. `say` gets each line for the operator."""

    backend: ExpectedBackend
    targets: tuple[Node, ...]
    others: tuple[Node, ...]
    revision: str
    hashes: bool
    dry_run: bool
    say: Callable[[str], None]

    # -- weights ------------------------------------------------------------------------------------------------------

    def models(self) -> Iterator[Pulled]:
        """Put the models of the launch onto every target: the model itself at the wished revision, and a drafter at its
        main. A dry run pulls none. Raises Broken."""
        for at, name in enumerate(self.backend.models):
            job = {
                "backend": asdict(self.backend),
                "image": self.backend.image,
                "model": name,
                "revision": "main" if at else self.revision,
                "is_repository": not name.startswith(("/", "~", ".")),
                "hashes": self.hashes,
            }
            looks = self._look(job)
            if not self.dry_run:
                yield self._model(job, looks)

    def _model(self, job: dict[str, Any], looks: Looks) -> Pulled:
        name = job["model"]
        targets = [(node, look) for node, look in looks if node in self.targets]
        source, had = next(((node, look) for node, look in looks if not look["left"]), (None, {}))
        if source is None:
            source, had = min(targets, key=lambda one: int(one[1]["needed"]))
            self._step(source, {**job, **had, "step": "download"}, f"{source.name}: download {name}")
        verified = self._verify(source, had, job)
        for node, look in targets:
            if node is source:
                continue
            if look["left"]:
                self._copy(source, had, node, look, job)
            verified = self._verify(node, look, job)
        commit = looks[0][1]["index"]["sha"] if job["is_repository"] else ""
        return name, commit, str(verified["config"]), int(verified["weights"])

    def _look(self, job: dict[str, Any]) -> Looks:
        """What each node has; the first that can tell it has the list of files for all. Raises Broken where a target
        does not answer, or nobody knows the files."""
        found: Looks = []
        problem, waiting = "no node to pull to", []
        for node in (*self.targets, *self.others):
            try:
                found.append((node, self._look_at(node, job, found)))
            except Broken as broken:
                problem = str(broken)
                waiting.append(node)
        if not found:
            raise Broken(problem)
        found += [(node, self._look_at(node, job, found)) for node in waiting if node in self.targets]
        for node, look in found:
            self.say(f"{node.name}: {_state(job['model'], look)}")
        return found

    def _look_at(self, node: Node, job: dict[str, Any], found: Looks) -> dict[str, Any]:
        index = {"index": found[0][1]["index"]} if found else {}
        return self._step(node, {**job, **index, "step": "look"})

    def _copy(self, source: Node, had: dict[str, Any], node: Node, look: dict[str, Any], job: dict[str, Any]) -> None:
        if look["free"] is not None and look["free"] - _SPARE < look["needed"]:
            raise Broken(f"{node.name}: {gib(look['needed'])} are missing, and {gib(look['free'])} of disk are free")
        step = {**job, **had, "step": "copy", "to_folder": look["folder"], "target": address_of(node)}
        self._step(source, step, f"{source.name} to {node.name}: copy {job['model']}")

    def _verify(self, node: Node, look: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
        verified = self._step(node, {**job, **look, "step": "verify"}, f"{node.name}: verify {job['model']}")
        self.say(f"{node.name}: {job['model']} is complete ({gib(look['size'])})")
        return verified

    # -- the image ----------------------------------------------------------------------------------------------------

    def image(self, name: str) -> None:
        """Put an image onto every target. Raises Broken."""
        ids: Looks = []
        for node in (*self.targets, *self.others):
            try:
                ids.append((node, self._step(node, {"step": "image", "image": name})))
            except Broken:
                if node in self.targets:
                    raise
        for node, there in ids:
            self.say(f"{node.name}: image {name} {'is here' if there['id'] else 'is not here'}")
        if self.dry_run:
            return
        source, has = next(((node, there) for node, there in ids if there["id"]), (self.targets[0], None))
        if has is None:
            has = self._step(source, {"step": "pull image", "image": name}, f"{source.name}: pull {name}")
        for node, there in ids:
            if node is source or node not in self.targets or there["id"] == has["id"]:
                continue
            step = {"step": "send image", "image": name, "size": has["size"], "target": address_of(node)}
            self._step(source, step, f"{source.name} to {node.name}: image {name}")
            if self._step(node, {"step": "image", "image": name})["id"] != has["id"]:
                raise Broken(f"{node.name}: the image {name} is not the one of {source.name} after the copy")
            self.say(f"{node.name}: image {name} is here")

    def _step(self, node: Node, job: Mapping[str, Any], what: str = "") -> dict[str, Any]:
        """The result of a step. Raises Broken, which says `what` was done, or where."""
        meter = Meter(what)
        try:
            return run_step(node, job, meter)
        except Broken as broken:
            raise Broken(f"{what or node.name}: {broken}") from None
        finally:
            meter.end()


def _state(name: str, look: dict[str, Any]) -> str:
    free = "" if look["free"] is None else f"; {gib(look['free'])} of disk are free"
    commit = str(look["index"]["sha"])[:7]
    known = f"{name}@{commit}" if commit.strip("0") else name
    if not look["left"]:
        return f"{known}: {gib(look['size'])}, all here{free}"
    return f"{known}: {gib(look['left'])} of {gib(look['size'])} are missing{free}"


def address_of(node: Node) -> str:
    """Where another node's ssh reaches it: over the fast link, as the user of the fleet's ssh."""
    target = (node.ssh or "").removeprefix("ssh://")
    user, at, host = target.rpartition("@")
    return f"{user}{at}{node.link or node.address or host}"


_PINNED_BY = "MODEL_REVISION"


@examples(
    "gateway fleet pull qwen36",
    "gateway fleet pull ds4 --to spark2 --dry-run",
    "gateway fleet pull qwen36 --revision 4f3c0de --pin",
    "gateway fleet pull qwen36 --only image",
)
@click.command()
@click.argument("backend", shell_complete=complete_backend)
@config_option
@click.option("--to", "nodes", multiple=True, metavar="NODE", help="Onto this node; default: those of the backend.")
@click.option("--revision", help="Branch, tag or commit; default: the launch's --revision, else main.")
@click.option("--only", type=click.Choice(["weights", "image"]), help="The weights alone, or the image alone.")
@click.option("--sizes", is_flag=True, help="Compare sizes alone, and no hashes.")
@click.option("--pin", is_flag=True, help="Write the commit into the launch block's variables.")
@click.option("--dry-run", is_flag=True, help="Say what is where, and move nothing.")
def command(
    backend: str,
    config: Path,
    nodes: tuple[str, ...],
    revision: str | None,
    only: str | None,
    sizes: bool,
    pin: bool,
    dry_run: bool,
) -> None:
    """Put the weights and the image of BACKEND onto its nodes: downloaded once, then copied from node to node.

    What is there already is kept, and a pull that was broken off goes on. Sizes and hashes are those of the hub's list.
    The node that downloads needs `hf` (or an image that has it), the one that copies rsync, and an ssh to the others.

    Exit code 0: everything is there; 1: something failed; 2: there is no such backend or node.
    """
    snapshot = load_or_exit(config).snapshot
    chosen = snapshot.backends.get(backend)
    if chosen is None:
        raise click.UsageError(f"no backend '{visible(backend)}': there are {', '.join(snapshot.backends)}")
    pull = _pull(chosen, nodes, revision, snapshot, hashes=not sizes, dry_run=dry_run)
    try:
        found = list(pull.models()) if only != "image" else []
        if pull.backend.image and only != "weights":
            pull.image(pull.backend.image)
    except Broken as broken:
        fail(str(broken))
    for model, _, written, weights in found:
        if written:
            try:  # what `gateway fleet plan` needs of the model
                keep(Path(snapshot.server.data), model, written, weights)
            except OSError as error:
                where = visible(str(error.filename or snapshot.server.data))
                why = f"its config.json cannot be kept for the plan: {where}: {error.strerror or error}"
                help_ = (
                    "pull as a user who may write there, or name a folder that has it (`gateway fleet plan --models`)"
                )
                click.echo(f"warning: {why}; {help_}", err=True)
    if pin and found and (commit := found[0][1]):
        _pin(config, chosen, commit)


def _pull(
    backend: Backend, names: tuple[str, ...], revision: str | None, snapshot: Snapshot, *, hashes: bool, dry_run: bool
) -> Pull:
    launch = backend.launch
    if launch is None or not launch.starts:
        raise click.UsageError(f"{backend.name} has no launch block, so nothing says what to pull")
    wanted = names or backend.nodes
    if not wanted:
        raise click.UsageError(f"{backend.name} is on no node: write backends.{backend.name}.node, or --to NODE")
    targets = tuple(_node(name, snapshot) for name in dict.fromkeys(wanted))
    others = tuple(node for node in snapshot.nodes.values() if node.ssh is not None and node not in targets)
    expected = expected_weights(backend.name, launch)
    unknown = [text for text in (*expected.models, expected.image or "") if is_reference(text)]
    if unknown:
        raise click.UsageError(f"{visible(unknown[0])} is known only where the engine is started: write it out")
    flag = launch.parsed.flags.get("revision")
    written = flag if isinstance(flag, str) and not is_reference(flag) else None
    wanted_revision = revision or written or "main"
    return Pull(expected, targets, others, wanted_revision, hashes, dry_run, lambda line: click.echo(visible(line)))


def _node(name: str, snapshot: Snapshot) -> Node:
    node = snapshot.nodes.get(name)
    if node is None:
        raise click.UsageError(f"no node '{visible(name)}': there are {', '.join(snapshot.nodes) or 'none'}")
    if node.ssh is None:
        raise click.UsageError(f"{name} is not reached: write nodes.{name}.ssh")
    return node


def _pin(config: Path, backend: Backend, commit: str) -> None:
    """Set the variable of `--revision ${NAME}` in the launch block to the commit."""
    assert backend.launch is not None
    flag = str(backend.launch.parsed.flags.get("revision") or "")
    name = flag.strip("${}") if is_reference(flag) and flag.strip("${}").isidentifier() else _PINNED_BY
    place = ("backends", backend.name, "launch")
    try:
        if backend.launch.env:
            text = with_entry(text_of(config), (*place, "env"), name, commit)
        else:
            text = with_entry(text_of(config), place, "env", f"{{{name}: {commit}}}", before="command")
    except CannotEdit as problem:
        fail(f"the file cannot be edited there ({problem}); write it yourself: env: {{{name}: {commit}}}")
    write_config(config, text)
    click.echo(f"{backend.name}: launch.env.{name}: {commit}")
    if not is_reference(flag):
        click.echo(f"write --revision ${{{name}}} into launch.command, so that the engine takes it")
