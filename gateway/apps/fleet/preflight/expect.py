"""The expectations of routes.yaml for each node: the ports, memory, images and weights of the backends that run
there."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.apps.control.memory.model_catalog import models_of
from gateway.apps.control.memory.model_files import read_models
from gateway.apps.control.memory.plan import weights_gib
from gateway.apps.control.memory.settings import UTILIZATION
from gateway.apps.control.unit_commands import unit_name, units_of
from gateway.apps.fleet.preflight.host import GIB, ExpectedBackend, ExpectedNode
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Backend, Launch, Snapshot
from gateway.launch.command import DEFAULT_PORT, MASTER_PORT

# The variables that the checks read; nothing else of the environment leaves this machine.
_READ = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
)


def expected_nodes(snapshot: Snapshot) -> list[ExpectedNode]:
    """Every node of the file, with the backends that run on it. Reads files of models."""
    weights = _weights(snapshot)
    return [
        ExpectedNode(
            name=node.name,
            memory=node.memory,
            exporter=node.exporter,
            user=(node.ssh or "").rpartition("@")[0],
            backends=tuple(
                _backend(backend, node.name, snapshot, weights)
                for backend in snapshot.backends.values()
                if node.name in backend.nodes
            ),
        )
        for node in snapshot.nodes.values()
    ]


def without_node(snapshot: Snapshot) -> list[str]:
    """The backends that are not looked at, because the file does not say where they run."""
    return [backend.name for backend in snapshot.backends.values() if not backend.nodes]


def _weights(snapshot: Snapshot) -> Mapping[str, float]:
    """Backend -> GiB of its models on one node, as far as they are known."""
    try:
        return weights_gib(snapshot, models_of(snapshot), read_models(snapshot))
    except ConfigError:  # `gateway check` reports the mistake in the catalogue
        return {}


def expected_weights(name: str, launch: Launch) -> ExpectedBackend:
    """Of a launch only what says where its weights and its image belong."""
    return ExpectedBackend(
        name, image=launch.image, models=_models(launch), volumes=launch.mounts, env=_environment(launch)
    )


def _backend(backend: Backend, node: str, snapshot: Snapshot, weights: Mapping[str, float]) -> ExpectedBackend:
    spans, worker = len(backend.nodes), backend.nodes[0] != node
    launch = backend.launch
    if launch is None or not launch.starts:
        port = backend.origin[2] if backend.url and not worker else None
        return ExpectedBackend(backend.name, port, served=backend.model, nodes=spans, worker=worker)
    flags = launch.parsed.flags
    program = launch.parsed.program[0] if launch.parsed.program else "vllm"
    meet = flags.get("master-port")
    return ExpectedBackend(
        name=backend.name,
        port=launch.host_port(launch.parsed.port or DEFAULT_PORT),
        master_port=None if spans < 2 else meet if type(meet) is int else MASTER_PORT,
        utilization=_utilization(launch),
        image=launch.image,
        program=None if launch.image else program,
        models=_models(launch),
        served=backend.model,
        volumes=launch.mounts,
        env=_environment(launch),
        nodes=spans,
        worker=worker,
        unit=f"{unit_name(backend.name)}.service",
        by_unit=bool(units_of(backend, snapshot.nodes)),
        weights=int(weights[backend.name] * GIB) if backend.name in weights else None,
    )


def _utilization(launch: Launch) -> float | None:
    """None where the command starts no vLLM, or a variable holds the figure."""
    if not launch.parsed.is_vllm:
        return None
    value = launch.parsed.flags.get("gpu-memory-utilization", UTILIZATION)
    return float(value) if isinstance(value, int | float) and 0 < value <= 1 else None


def _models(launch: Launch) -> tuple[str, ...]:
    draft = launch.parsed.flags.get("speculative-config")
    found = [launch.parsed.model, draft.get("model") if isinstance(draft, Mapping) else None]
    return tuple(model for model in found if isinstance(model, str) and model)


def _environment(launch: Launch) -> dict[str, str]:
    env = launch.variables
    folder = launch.parsed.flags.get("download-dir")
    env |= {"HF_HUB_CACHE": folder} if isinstance(folder, str) else {}
    return {name: env[name] for name in _READ if name in env and "${" not in env[name]}
