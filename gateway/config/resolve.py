"""From what the file says to the immutable snapshot: names are checked and defaults merged in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os.path import isfile as is_file
from urllib.parse import urlsplit

from gateway.config.aliases import resolve_aliases
from gateway.config.backends import resolve_backends
from gateway.config.clients import resolve_clients
from gateway.config.modes import resolve_modes
from gateway.config.problems import Path, Report
from gateway.config.schema import Section, built, has_all, was_tried
from gateway.config.secret import Secret
from gateway.config.services import INSTALL, service_of
from gateway.config.setting import settings_of
from gateway.config.snapshot import (
    LISTEN,
    Alerts,
    Alias,
    Backend,
    Mode,
    Node,
    PastRequests,
    Server,
    Snapshot,
    Telegram,
    Tls,
    Traces,
)
from gateway.config.units import check_names
from gateway.config.urls import REDIS_SCHEMES, check_url, is_private_host, receiver_problem, redis_problem


def resolve(file: Section, report: Report) -> Snapshot:
    """The snapshot. It is valid only when `report` holds no error, which `report.finish()` checks."""
    for section in ("nodes", "backends", "clients", "aliases", "modes"):
        check_names(section, getattr(file, section) or {}, report)
    if not file.backends and not report.lost("backends"):
        report.error(("backends",), "there is no backend", 'write backends: {NAME: {url: "http://HOST:PORT"}}')
    backends = resolve_backends(file, report)
    aliases = resolve_aliases(file, backends, report)
    modes = resolve_modes(file.modes or {}, backends, report)
    _warn_of_doubles(backends.values(), report)
    _warn_of_unserved(aliases.values(), backends, modes, report)
    return Snapshot(
        backends=backends,
        aliases=aliases,
        clients=resolve_clients(file, aliases, report),
        nodes=_nodes(file, backends.values(), report),
        server=_server(file, report),
        alerts=_alerts(file.alerts, report),
        traces=_traces(file.traces, report),
        modes=modes,
        own_catalog=file.catalog,
        source=report.file,
    )


def _warn_of_doubles(backends: Iterable[Backend], report: Report) -> None:
    """Of two backends that are one model of one server, each counts all of its slots."""
    known: dict[tuple[str, str], list[Backend]] = {}
    for backend in backends:
        if backend.url is None or backend.on is not None or backend.engine == "http":
            continue
        others = known.setdefault((backend.engine, backend.url.removesuffix("/v1")), [])
        for other in others:
            if backend.model == other.model or None in (backend.model, other.model):
                message = f"is the same server and model as '{other.name}': each counts all of its slots"
                report.warn(("backends", backend.name), message, "use one backend in several aliases")
                break
        others.append(backend)


def _warn_of_unserved(
    aliases: Iterable[Alias], backends: Mapping[str, Backend], modes: Mapping[str, Mode], report: Report
) -> None:
    """An alias of which no mode has a backend, where others have some."""
    used = {name for mode in modes.values() for name in mode.backends}
    for alias in aliases if modes else ():
        members = [backends[name] for step in alias.steps for name in step if name in backends]
        parked = [one for one in members if not (one.cloud or one.run == "on_request" or (one.on or one.name) in used)]
        if members and parked == members and not alias.implicit:
            names = ", ".join(dict.fromkeys(one.on or one.name for one in members))
            report.warn(("aliases", alias.name), "no mode has any of its backends", f"put one into a mode: {names}")


def _nodes(file: Section, backends: Iterable[Backend], report: Report) -> Mapping[str, Node]:
    """The declared nodes; without a `nodes` section, those that the backends name."""
    for name, section in file.nodes.items():
        if section.exporter is not None:
            check_url(section.exporter, ("nodes", name, "exporter"), report, base=False)
    declared = {n: built(Node, s, name=n) for n, s in file.nodes.items()}
    return declared or {name: Node(name) for backend in backends for name in backend.nodes}


def _server(file: Section, report: Report) -> Server:
    section = file.server
    host, port = section.listen or LISTEN
    also: tuple[tuple[str, int], ...] = section.also_listen or ()
    for key, (at, number) in (("listen", (host, port)), *(("also_listen", one) for one in also)):
        if not report.was_dropped("clients") and (message := exposure(at, number, clients=bool(file.clients))):
            report.warn(("server", key), message, SHUT)
    if len({number for _, number in also} - {port}) < len(also):
        report.error(("server", "also_listen"), "each address needs a port of its own", f"`listen` has {port}")
    if section.metrics == "key" and not any(client.admin for client in file.clients.values()):
        who = "nobody may read" if file.clients else "only this machine may read"
        report.warn(("server", "metrics"), f"no client is an admin: {who} /metrics", "give a client `admin: true`")
    _check_redis_url(section.shared, ("server", "shared"), report)
    tls = _tls(section.tls, report)
    return built(Server, section, host=host, port=port, requests=built(PastRequests, section.requests), tls=tls)


def _tls(section: Section | None, report: Report) -> Tls | None:
    if section is None:
        return None
    path: Path = ("server", "tls")
    whole = has_all(section, settings_of(Tls), path, report, "write {cert: /path/cert.pem, key: /path/key.pem}")
    for key in settings_of(Tls):
        if (file := getattr(section, key)) is not None and not is_file(file):
            report.warn((*path, key), f"there is no file {file}", "the gateway does not start without it")
    return Tls(section.cert, section.key) if whole else None


def _alerts(section: Section, report: Report) -> Alerts:
    telegram: Section | None = section.telegram
    if telegram is not None:
        has_all(telegram, settings_of(Telegram), ("alerts", "telegram"), report, 'write KEY: "..."')
    _check_receiver(section.webhook, ("alerts", "webhook"), report)
    _check_receiver(section.deadman, ("alerts", "deadman"), report)
    _check_services(section.notify or (), report)
    if telegram is None:
        return built(Alerts, section)
    return built(Alerts, section, telegram_token=telegram.token, telegram_chat=telegram.chat)


def _check_services(urls: tuple[Secret, ...], report: Report) -> None:
    for index, url in enumerate(urls, start=1):
        try:
            service_of(url.reveal())
        except ImportError:
            report.warn(("alerts", "notify"), "apprise is not installed, so no alert is sent there", INSTALL)
            return
        except ValueError as error:
            report.error(
                ("alerts", "notify"), f"number {index} {error}", "write SERVICE://... as apprise has it: ntfy://TOPIC"
            )


def _traces(section: Section | None, report: Report) -> Traces | None:
    if section is None:
        return None
    endpoint: Secret | None = section.endpoint
    if endpoint is None:
        written = section.model_fields_set
        if written and "endpoint" not in written and not was_tried("endpoint", ("traces",), report):
            report.error(("traces",), "'endpoint' is missing", "write the URL of an OTLP/HTTP receiver, or none")
        return None
    if not _check_receiver(endpoint, ("traces", "endpoint"), report):
        return None
    found = built(Traces, section)
    if found.prompts and not is_private_host(urlsplit(endpoint.reveal()).hostname or ""):
        report.warn(("traces", "prompts"), "prompts leave the LAN with the traces", "set `prompts: false`")
    return found


def _check_receiver(value: Secret | None, path: Path, report: Report) -> bool:
    """Whether the value is none or a URL that alerts or traces can be sent to; reports it when it is not."""
    if value is None:
        return True
    if not _check_secret_url(value, path, ("http", "https"), report):
        return False
    problem = receiver_problem(value.reveal())
    if problem is not None:
        report.error(path, *problem)
    return problem is None


def _check_redis_url(value: Secret | None, path: Path, report: Report) -> None:
    if _check_secret_url(value, path, REDIS_SCHEMES, report) and value is not None:
        problem = redis_problem(value.reveal())
        if problem is not None:
            report.error(path, *problem)


def _check_secret_url(value: Secret | None, path: Path, schemes: tuple[str, ...], report: Report) -> bool:
    """Whether the value is none or a URL of one of these schemes; reports it when it is not."""
    if value is None or value.reveal().startswith(tuple(f"{scheme}://" for scheme in schemes)):
        return True
    report.error(path, "must be a URL that starts with " + " or ".join(f"{scheme}://" for scheme in schemes))
    return False


SHUT = "add clients with keys, or listen on 127.0.0.1"


def exposure(host: str, port: int, *, clients: bool) -> str | None:
    """A warning about listening at this address; None = there is none."""
    if clients or host in ("localhost", "::1") or host.startswith("127."):
        return None
    return f"listening on {host} without `clients`: whoever reaches port {port} may use every alias"
