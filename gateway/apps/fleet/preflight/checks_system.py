"""The machine around the engine: variables set for everybody, the link between two nodes, the clock, the exporter.

Runs on the node: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote
from urllib.parse import urlsplit

from gateway.apps.fleet.preflight.host import ExpectedBackend, ExpectedNode, Host, HostCheck, fail, ok, unknown, warn

_PREFIXES = r"(?:VLLM|NCCL|CUDA|PYTORCH|TORCH)_\w+"
_MTU = 9000


def environment(_: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Variables set for every process change engines that nobody set them for. Names only: a value may be a secret."""
    found = False
    for name, value in re.findall(rf"^\s*(?:export\s+)?({_PREFIXES})=(.*)", host.text("/etc/environment") or "", re.M):
        found = True
        mend = rf"sudo sed -i -E '/^\s*(export\s+)?{name}=/d' /etc/environment"
        yield _variable(name, value, "/etc/environment", mend)
    ran = host.run(["systemctl", "show-environment"])
    for name, value in re.findall(rf"^({_PREFIXES})=(.*)", ran.out, re.M) if ran.ok else ():
        found = True
        yield _variable(name, value, "systemd's own environment", f"sudo systemctl unset-environment {name}")
    if not found and ran.ok:
        yield ok("no VLLM_, NCCL_, CUDA_ or TORCH_ variable is set for everybody")
    elif not found:
        yield unknown(f"systemd's environment cannot be read: {ran.why}")


def _variable(name: str, value: str, where: str, mend: str) -> HostCheck:
    if name == "VLLM_WORKER_MULTIPROC_METHOD" and "fork" in value:
        return fail(f"{name}=fork in {where}: the engine crashes (ShmRingBuffer)", mend)
    seen = f"{name} in {where} holds for every engine; a backend's own belongs under its launch.env"
    return warn(seen, mend)


# -- the link between two nodes ---------------------------------------------------------------------------------------


def network(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """The interfaces that a two-node engine has to use exist, are up and carry large packets."""
    spanning = [backend for backend in expected.backends if backend.nodes > 1]
    interfaces = host.names("/sys/class/net")
    for backend in spanning:
        if interfaces is None:
            yield unknown("/sys/class/net cannot be read", backend=backend.name)
            continue
        checks = [*_sockets(backend, interfaces, host), *_infiniband(backend, host)]
        yield from checks or [ok("its interfaces are there and up", backend=backend.name)]
    if not spanning:
        yield ok("no backend spans two nodes")


def _sockets(backend: ExpectedBackend, interfaces: list[str], host: Host) -> Iterator[HostCheck]:
    others = ", ".join(name for name in interfaces if name != "lo") or "none"
    wanted = dict.fromkeys((backend.env.get("NCCL_SOCKET_IFNAME", ""), backend.env.get("GLOO_SOCKET_IFNAME", "")))
    names = [name for value in wanted for name in value.removeprefix("=").split(",") if name]
    if not names:
        mend = f"write NCCL_SOCKET_IFNAME under backends.{backend.name}.launch.env: one of {others}"
        yield warn("NCCL_SOCKET_IFNAME is not set: NCCL chooses", mend, backend.name)
    for name in dict.fromkeys(name for name in names if not name.startswith("^")):
        found = next((one for one in interfaces if one == name), None) or next(
            (one for one in interfaces if one.startswith(name)), None
        )
        if found is None:
            mend = f"write one that exists under backends.{backend.name}.launch.env: {others}"
            yield fail(f"there is no interface {name}", mend, backend.name)
            continue
        state = (host.text(f"/sys/class/net/{found}/operstate") or "").strip()
        mtu = (host.text(f"/sys/class/net/{found}/mtu") or "").strip()
        if state == "down":
            yield fail(f"interface {found} is down", f"sudo ip link set dev {found} up", backend.name)
        elif mtu.isdigit() and int(mtu) < _MTU:
            mend = f"sudo ip link set dev {found} mtu {_MTU}   # on both nodes, and in netplan to keep it"
            yield warn(f"interface {found} has MTU {mtu}, not {_MTU}", mend, backend.name)


def _infiniband(backend: ExpectedBackend, host: Host) -> Iterator[HostCheck]:
    value = backend.env.get("NCCL_IB_HCA", "")
    if backend.env.get("NCCL_IB_DISABLE", "0") == "1" or value.startswith("^"):
        return
    adapters = host.names("/sys/class/infiniband") or []
    for written in value.removeprefix("=").split(","):
        name = written.partition(":")[0]
        if not name:
            continue
        if not any(one.startswith(name) for one in adapters):
            there = ", ".join(adapters) or "none is there"
            mend = f"write one that exists under backends.{backend.name}.launch.env: {there}"
            yield fail(f"there is no adapter {name} for NCCL_IB_HCA", mend, backend.name)
            continue
        state = host.text(f"/sys/class/infiniband/{name}/ports/1/state")
        if state is not None and "ACTIVE" not in state:
            seen = f"adapter {name} is not active ({state.strip()})"
            yield fail(seen, "ibdev2netdev; ip -br link   # look at the cable", backend.name)


# -- the clock, the exporter ------------------------------------------------------------------------------------------


def clock(_: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Logs and metrics of two nodes can only be compared when their clocks agree."""
    ran = host.run(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    if not ran.ok:
        yield unknown(f"timedatectl does not answer: {ran.why}")
    elif ran.out.strip() == "yes":
        yield ok("the clock is synchronised")
    else:
        yield warn("the clock is not synchronised", "sudo timedatectl set-ntp true")


def exporter(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Temperatures and memory on the status page come from the node's exporter."""
    if expected.exporter is None:
        yield ok("routes.yaml names none")
        return
    answer = host.fetch(expected.exporter)
    port = urlsplit(expected.exporter).port
    if answer is not None and re.search(r"^\w+(\{.*\})? [-+0-9.eENaIinf]+", answer, re.M):
        yield ok(f"{expected.exporter} has metrics")
    elif answer is not None:
        mend = f"curl -sS {quote(expected.exporter)}   # correct nodes.{expected.name}.exporter"
        yield warn(f"{expected.exporter} answers, but not with metrics", mend)
    else:
        mend = f"systemctl list-units --all '*exporter*'; docker ps -a | grep -i exporter; ss -ltn 'sport = :{port}'"
        yield warn(f"{expected.exporter} does not answer", mend)
