"""A launch as a systemd unit. All it runs is the launch script, so no quoting of systemd touches the engine's words."""

from __future__ import annotations

from gateway.apps.fleet.render.launches import NodeLaunch
from gateway.apps.fleet.render.order import Start
from gateway.apps.fleet.render.paths import MARK, env_path, script_path
from gateway.apps.fleet.render.words import unit_text
from gateway.domain.engine_traits import traits_of

ATTEMPTS = 4
STOP_SECONDS = 90  # then `docker stop` kills the container
# What no restart mends. 2: flags that the engine does not know; 78: the launch script refuses; 126, 127: the program
# cannot be run, or is not there.
FINAL_EXITS = "2 78 126 127"


def unit_file(launch: NodeLaunch, start: Start) -> str:
    """The text of `spark-<backend>.service`."""
    return "\n".join([*_head(launch), "", *_unit(launch, start), "", *_service(launch, start), "", *_install()]) + "\n"


def _head(launch: NodeLaunch) -> list[str]:
    return [f"# {MARK} from {launch.path} for {launch.node.name}. Edits here are lost: change routes.yaml."]


def _unit(launch: NodeLaunch, start: Start) -> list[str]:
    model = launch.command.model or launch.launch.image or launch.backend.name
    docker = ["docker.service"] if launch.launch.image else []
    after = ["network-online.target", *docker, *(f"{one.unit}.service" for one in start.before)]
    window = ATTEMPTS * (start.seconds + 60) + 600
    return [
        "[Unit]",
        f"Description={unit_text(launch.backend.name)}: {unit_text(model)}",
        "Wants=network-online.target",
        *(f"Requires={name}" for name in docker),
        f"After={' '.join(after)}",
        f"# After {ATTEMPTS} failures in a row it stays down, however long each took, until `systemctl reset-failed`.",
        "# A start that succeeds, and a stop on purpose, set the count back.",
        f"StartLimitIntervalSec={window}",
        f"StartLimitBurst={ATTEMPTS}",
    ]


def _service(launch: NodeLaunch, start: Start) -> list[str]:
    script = script_path(launch.name)
    lines = ["[Service]", "Type=exec"]
    if launch.user and not launch.launch.image:
        lines.append(f"User={launch.user}")
    else:
        lines.append("Environment=HOME=/root")
    if launch.variables:
        lines.append(f"EnvironmentFile={env_path(launch.name)}")
    lines += [
        "# As root, whoever runs the engine: waits for the engines before it, removes what an earlier start left",
        "# behind, drops the page cache (the engine counts it as used memory).",
        f"ExecStartPre=+{script} prepare",
        f"ExecStart={script} run",
    ]
    if launch.url:
        lines += ["# The start is over when the engine answers.", f"ExecStartPost=+{script} ready"]
    if warms_up(launch):
        lines.append(f"ExecStartPost=-{script} warm-up")
    if launch.launch.image:
        lines.append(f"ExecStop={script} stop")
    return [
        *lines,
        f"ExecStopPost=-+{script} clean",
        "KillMode=mixed",
        f"TimeoutStartSec={start.seconds + 60}",
        f"TimeoutStopSec={STOP_SECONDS + 30}",
        "Restart=on-failure",
        "RestartSec=30",
        "SuccessExitStatus=143",
        f"RestartPreventExitStatus={FINAL_EXITS}",
        "LimitMEMLOCK=infinity",
        "LimitSTACK=67108864",
    ]


def _install() -> list[str]:
    return ["[Install]", "WantedBy=multi-user.target"]


def warms_up(launch: NodeLaunch) -> bool:
    """Whether a chat request can be sent once the engine is ready: it answers, its model's name is known, and the
    command does not say that it serves no chats."""
    flags = launch.command.flags
    chats = flags.get("runner") in (None, "auto", "generate") and flags.get("task") in (None, "auto", "generate")
    vllm = traits_of(launch.backend).launch_flags and launch.command.is_vllm
    return launch.url is not None and chats and vllm and served_name(launch) is not None


def served_name(launch: NodeLaunch) -> str | None:
    """The model's name in requests: --served-model-name, else the model."""
    names = launch.command.flags.get("served-model-name") or launch.command.model
    return str(names[0]) if isinstance(names, list) else names if isinstance(names, str) else None
