"""Rules about one engine over two machines. `gateway fleet render` writes the worker's line; these look at what is
given."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.apps.fleet.lint.rules_container import DOCKER, IMAGE, is_loopback
from gateway.apps.fleet.lint.subject import Finding, Subject
from gateway.launch.command import MASTER_PORT

DS4 = "DeepSeek V4 Flash on two Sparks"
# Flags whose value is a name, an address or a number; text for a model may hold <think>.
_FILLED_IN = ("master-addr", "host", "served-model-name", "tokenizer", "download-dir", "data-parallel-address")
_BLANK = re.compile(r"<[A-Za-z][\w. -]*>|(?<![$\w])\{[A-Za-z_]\w*\}|\bYOUR_[A-Z_]+|\bREPLACE_ME\b", re.ASCII)
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def placeholder(one: Subject) -> Iterator[Finding]:
    """`<head-ip>`, `{port}`, `YOUR_MODEL`: a line of instructions whose blanks are not filled in."""
    if not one.launched:
        return
    texts = {f"--{flag}": one.text(flag) or "" for flag in _FILLED_IN}
    texts |= {"the model": one.command.model or "", "image": one.image or "", **one.env}
    for name, text in texts.items():
        if (found := _BLANK.search(text)) is not None:
            yield Finding(
                "error", f"{name} is still {found[0]}: a placeholder", f"write the value of {name}", DS4, one.place
            )


def _spans(one: Subject) -> bool:
    return one.whole and one.nodes > 1 and not _on_ray(one)


def _on_ray(one: Subject) -> bool:
    return one.text("distributed-executor-backend") == "ray"


def two_node_ray(one: Subject) -> Iterator[Finding]:
    """A Ray cluster under the engine."""
    if not one.whole or not _on_ray(one):
        return
    if one.nodes == 1 and one.ranks == 1:
        message = "Ray for one GPU: it takes memory and another process that can fall out"
        yield Finding("warning", message, "take out --distributed-executor-backend ray", DS4)
        return
    lacks = one.image_facts is not None and "ray" in one.image_facts.lacks
    more = f"; {one.image} has no Ray" if lacks else ""
    message = f"Ray's head falls out under memory pressure, and the whole job with it{more}"
    fix = f"--nnodes 2 --node-rank 0 --master-addr HEAD --master-port {MASTER_PORT}"
    fix += ", without --distributed-executor-backend ray"
    yield Finding("warning", message, fix, "what broke on two Sparks; " + DS4)


def two_node_address(one: Subject) -> Iterator[Finding]:
    """Where the machines meet, and how many they are."""
    if not _spans(one):
        return
    nnodes, address, machines = one.number("nnodes"), one.text("master-addr"), len(one.backend.nodes)
    if nnodes is None:
        message = (
            f"{one.nodes} machines, and no --nnodes: by hand each starts an engine of its own (`fleet render` adds it)"
        )
        fix = f"--nnodes {one.nodes} --node-rank 0 --master-addr HEAD --master-port {MASTER_PORT}"
        yield Finding("note", message, fix, DS4)
        return
    if machines and nnodes != machines:
        message = f"--nnodes {nnodes}, and `node` names {machines}: the engine waits for machines that never come"
        yield Finding("error", message, f"--nnodes {machines}", DS4)
    if "master-addr" not in one.flags:
        message = "no --master-addr: by hand every machine waits at its own 127.0.0.1 (`fleet render` adds it)"
        yield Finding("warning", message, "--master-addr HEAD (its address on the fast link)", DS4)
    elif is_loopback(address):
        message = f"--master-addr {address}: the other machine looks for the head on itself"
        yield Finding("error", message, "--master-addr HEAD (its address on the fast link)", DS4)


def two_node_headless(one: Subject) -> Iterator[Finding]:
    """The head serves the API, the worker does not."""
    if not _spans(one):
        return
    rank, headless = one.number("node-rank") or 0, one.flags.get("headless") is True
    if rank == 0 and headless:
        message = "--headless on the head: nothing serves the API"
        yield Finding("error", message, "take out --headless: only the worker has it", f"{DS4}, failure 5")
    elif rank > 0 and not headless:
        message = f"a worker without --headless: both machines bind port {MASTER_PORT}, and one dies"
        yield Finding("error", message, "--headless", f"{DS4}, failure 5")


def two_node_network(one: Subject) -> Iterator[Finding]:
    """The fast link, and a container that sees it."""
    if not one.whole or one.nodes < 2 or one.profile is not None:
        return
    missing = [name for name in _INTERFACES if name not in one.env]
    if missing:
        message = f"without {' and '.join(missing)} the machines may talk over the slow network: 10 to 20 times slower"
        fix = "env: {" + ", ".join(f"{name}: bond0" for name in missing) + "}  (the interface of the fast link)"
        yield Finding("warning", message, fix, f"{DS4}; guide to vLLM on a Spark, 13")
    if one.image is not None and not one.on_host_network and one.docker.has("network", "publish"):
        message = "an engine over two machines in a container with a network of its own: the machines do not meet"
        yield Finding(
            "warning", message, "docker: --network host --ipc=host", DS4, DOCKER if one.launch.docker else IMAGE
        )
