"""From the models to the immutable snapshot: defaults merged in, names checked, assumptions made explicit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from gateway.config import models as m
from gateway.config import redis_url
from gateway.config.aliases import resolve_aliases
from gateway.config.backends import resolve_backends
from gateway.config.clients import resolve_clients
from gateway.config.names import check_names
from gateway.config.problems import Path, Report
from gateway.config.snapshot import Alerts, Backend, Node, Secret, Server, Snapshot, Traces, is_private_host
from gateway.config.urls import check_url


def resolve(file: m.RoutesFile, report: Report) -> Snapshot:
    """The snapshot. It is complete only when `report` holds no error: `report.finish()` tells."""
    for section in ("nodes", "backends", "clients", "aliases"):
        check_names(section, getattr(file, section), report)
    if not file.backends and not report.was_dropped("backends"):
        report.error(("backends",), "there is no backend", 'write backends: {NAME: {url: "http://HOST:PORT"}}')
    backends = resolve_backends(file, report)
    aliases = resolve_aliases(file, backends, report)
    return Snapshot(
        backends=backends,
        aliases=aliases,
        clients=resolve_clients(file, aliases, report),
        nodes=_nodes(file, backends.values(), report),
        server=_server(file, report),
        alerts=_alerts(file.alerts, report),
        traces=_traces(file.traces, report),
        source=report.file,
    )


def _nodes(file: m.RoutesFile, backends: Iterable[Backend], report: Report) -> Mapping[str, Node]:
    """The declared nodes; without a `nodes` section, those that the backends name."""
    for name, section in file.nodes.items():
        if section.exporter is not None:
            check_url(section.exporter, ("nodes", name, "exporter"), report, base=False)
    declared = {n: Node(n, memory=s.memory, exporter=s.exporter) for n, s in file.nodes.items()}
    return declared or {name: Node(name) for backend in backends for name in backend.nodes}


SHUT = "add clients with keys, or listen on 127.0.0.1"


def exposure(host: str, port: int, *, clients: bool) -> str | None:
    """What is odd about listening there; None = nothing."""
    if clients or host in ("localhost", "::1") or host.startswith("127."):
        return None
    return f"listening on {host} without `clients`: whoever reaches port {port} may use every alias"


def _server(file: m.RoutesFile, report: Report) -> Server:
    section = file.server
    host, port = section.listen
    if not report.was_dropped("clients") and (message := exposure(host, port, clients=bool(file.clients))):
        report.warn(("server", "listen"), message, SHUT)
    if section.metrics == "key" and not any(client.admin for client in file.clients.values()):
        who = "nobody may read" if file.clients else "only this machine may read"
        report.warn(("server", "metrics"), f"no client is an admin: {who} /metrics", "give a client `admin: true`")
    _check_redis_url(section.shared, ("server", "shared"), report)
    return Server(
        host=host,
        port=port,
        shared=section.shared,
        data=section.data,
        max_body=section.max_body,
        memory=section.memory,
        shutdown=section.shutdown,
        log=section.log,
        hosts=None if section.hosts is None else tuple(dict.fromkeys(section.hosts)),
        metrics=section.metrics,
        proxies=tuple(section.proxies),
    )


def _alerts(section: m.AlertsSection, report: Report) -> Alerts:
    telegram = section.telegram
    if telegram is not None:
        for key in ("token", "chat"):
            if getattr(telegram, key) is None and not report.was_dropped("alerts", "telegram", key):
                report.error(("alerts", "telegram"), f"'{key}' is missing")
    _check_secret_url(section.webhook, ("alerts", "webhook"), ("http", "https"), report)
    _check_secret_url(section.deadman, ("alerts", "deadman"), ("http", "https"), report)
    return Alerts(
        telegram_token=telegram.token if telegram else None,
        telegram_chat=telegram.chat if telegram else None,
        webhook=section.webhook,
        deadman=section.deadman,
    )


def _traces(section: m.TracesSection, report: Report) -> Traces | None:
    endpoint = section.endpoint
    if endpoint is None:
        written = section.model_fields_set
        if written and "endpoint" not in written and not report.was_dropped("traces", "endpoint"):
            report.error(("traces",), "'endpoint' is missing", "write the URL of an OTLP/HTTP receiver, or none")
        return None
    _check_secret_url(endpoint, ("traces", "endpoint"), ("http", "https"), report)
    if section.prompts and not is_private_host(urlsplit(endpoint.reveal()).hostname or ""):
        report.warn(("traces", "prompts"), "prompts leave the LAN with the traces", "set `prompts: false`")
    return Traces(endpoint, section.sample, section.prompts)


def _check_redis_url(value: Secret | None, path: Path, report: Report) -> None:
    if _check_secret_url(value, path, redis_url.SCHEMES, report) and value is not None:
        problem = redis_url.problem_of(value.reveal())
        if problem is not None:
            report.error(path, *problem)


def _check_secret_url(value: Secret | None, path: Path, schemes: tuple[str, ...], report: Report) -> bool:
    """Is it none, or begins as it must?"""
    if value is None or value.reveal().startswith(tuple(f"{scheme}://" for scheme in schemes)):
        return True
    report.error(path, "must be a URL that starts with " + " or ".join(f"{scheme}://" for scheme in schemes))
    return False
