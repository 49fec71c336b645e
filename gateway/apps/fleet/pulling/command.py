"""`gateway fleet pull`: the weights and the image of a backend, onto its nodes."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.apps.control.memory.model_files import keep
from gateway.apps.fleet.learning.edit import CannotEdit, text_of, with_entry, write_config
from gateway.apps.fleet.preflight.expect import expected_weights
from gateway.apps.fleet.pulling.files import Broken
from gateway.apps.fleet.pulling.pull import Pull
from gateway.cli.options import complete_backend, config_option, examples, fail, load_or_exit
from gateway.config.snapshot import Backend, Node, Snapshot
from gateway.launch.flags import is_reference
from gateway.printable import visible

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
    for one in found:
        if one.config:
            try:  # what `gateway fleet plan` needs of the model
                keep(Path(snapshot.server.data), one.model, one.config, one.weights)
            except OSError as error:
                click.echo(f"warning: its config.json cannot be kept for the plan: {error.strerror or error}", err=True)
    if pin and found and found[0].revision:
        _pin(config, chosen, found[0].revision)


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
