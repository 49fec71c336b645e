"""Obstacles of a start: used ports, processes left behind, the image, the installed units. Runs on the node: standard
library only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from gateway.apps.fleet.preflight.host import (
    ExpectedBackend,
    ExpectedNode,
    Host,
    HostCheck,
    Process,
    fail,
    ok,
    unknown,
    warn,
)

_MOST_PROCESSES_READ = 5000  # whose open files are looked through for a socket
_SHELLS = ("sh", "bash", "dash", "env", "python3", "python")
_SYSTEMD = "/etc/systemd/system"
_PROPERTIES = (
    "Id,LoadState,FragmentPath,User,PermissionsStartOnly,ExecStart,ExecStartPre,ExecStartPreEx,EnvironmentFiles,"
    "ExecMainStatus,NRestarts"
)


_INSTALL = "gateway fleet render --out fleet   # on the gateway's machine; then scp and sudo ./NODE/install.sh there"


# -- ports ------------------------------------------------------------------------------------------------------------


def listening(host: Host) -> dict[int, str]:
    """Port -> the socket's inode, of all TCP sockets that listen."""
    found: dict[int, str] = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (host.text(path) or "").splitlines()[1:]:
            cells = line.split()
            if len(cells) > 9 and cells[3] == "0A":
                found.setdefault(int(cells[1].rpartition(":")[2], 16), cells[9])
    return found


def _published(host: Host) -> dict[int, str]:
    """Port -> the container that publishes it (also where docker forwards it without a listening process)."""
    ran = host.run(["docker", "ps", "--format", "{{.Names}}\t{{.Ports}}"])
    lines = (line.partition("\t") for line in ran.out.splitlines()) if ran.ok else ()
    return {int(port): name for name, _, ports in lines for port in re.findall(r":(\d+)->", ports)}


def _holder(host: Host, inode: str) -> int | None:
    """The process that has the socket; None when only root can see it."""
    numbers = [name for name in host.names("/proc") or () if name.isdigit()]
    for pid in numbers[:_MOST_PROCESSES_READ]:
        for fd in host.names(f"/proc/{pid}/fd") or ():
            if host.link(f"/proc/{pid}/fd/{fd}") == f"socket:[{inode}]":
                return int(pid)
    return None


def ports(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Each port that a backend listens on is free, or the backend has it already."""
    used, containers = listening(host), _published(host)
    if host.text("/proc/net/tcp") is None:
        yield unknown("/proc/net/tcp cannot be read")
        return
    for backend in expected.backends:
        if backend.port is not None and not backend.worker:
            yield _port(backend, backend.port, used, containers, host)
        if backend.nodes > 1 and backend.master_port is not None:
            yield _port(backend, backend.master_port, used, containers, host, "between the nodes ")


def _port(
    backend: ExpectedBackend, port: int, used: dict[int, str], containers: dict[int, str], host: Host, what: str = ""
) -> HostCheck:
    if port not in used and port not in containers:
        return ok(f"port {port} {what}is free", backend=backend.name)
    if host.runs(backend):
        return ok(f"port {port} {what}is used by the backend itself, which runs", backend=backend.name)
    container = containers.get(port)
    if (own := host.own(backend)) and container in (None, (backend.unit or "").removesuffix(".service")):
        return ok(f"port {port} {what}is used by the backend itself: {own}", backend=backend.name)
    if container is not None:
        seen, mend = f"container {container}", f"docker stop {quote(container)}"
    elif (pid := _holder(host, used[port])) is not None:
        command = (host.text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
        seen, mend = f"process {pid} ({_shown(command)})", f"sudo kill {pid}"
    else:
        seen, mend = "a process that only root sees", f"sudo ss -ltnp 'sport = :{port}'"
    return fail(f"port {port} {what}is used by {seen}", mend, backend.name)


def _shown(command: str) -> str:
    """The beginning of a command line, up to the first flag but `-m`: a key may be among the values of flags."""
    words = command.split()[:3]
    end = next((at for at, word in enumerate(words, 1) if word.startswith("-") and word != "-m"), len(words))
    shown = [word.partition("=")[0] for word in words[:end] if not word.lower().startswith(("hf_", "sk-"))]
    return "".join(c if c.isprintable() else "?" for c in " ".join(shown))[:80] or "no command line"


# -- processes --------------------------------------------------------------------------------------------------------


def leftovers(_: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Workers whose engine is gone hold its memory and its ports; stopping a container does not always reach them."""
    if not host.sees_all_processes():
        yield unknown("the node's processes cannot be seen from here (a container, or hidepid)")
        return
    processes = {process.pid: process for process in host.processes()}
    engines = [process for process in processes.values() if process.engine]
    orphans = [p for p in processes.values() if p.engine_part and not _has_engine(p, processes)]
    if orphans:
        named = ", ".join(f"{p.pid} ({_shown(p.command)})" for p in orphans[:20])
        pids = " ".join(str(p.pid) for p in orphans[:200])
        yield fail(f"vLLM processes without their engine: {named}", f"sudo kill -9 {pids}")
    else:
        running = ", ".join(str(p.pid) for p in engines[:20])
        yield ok(f"vLLM runs as process {running}" if engines else "no vLLM process runs")


def _has_engine(process: Process, processes: dict[int, Process]) -> bool:
    for _ in range(16):  # a worker's ancestors: the engine core, the engine, a shell, the container's shim
        parent = processes.get(process.parent)
        if parent is None:
            return False
        if parent.engine:
            return True
        process = parent
    return False


# -- images -----------------------------------------------------------------------------------------------------------


def images(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Each image is here and built for this machine; a backend without one finds its program."""
    machine = host.run(["uname", "-m"]).out.strip()
    for backend in expected.backends:
        yield _image(backend, backend.image, machine, host) if backend.image else _program(backend, host)


def _image(backend: ExpectedBackend, image: str, machine: str, host: Host) -> HostCheck:
    ran = host.run(["docker", "image", "inspect", "--format", "{{.Architecture}} {{.Id}}", "--", image])
    if "permission denied" in ran.why.lower():
        mend = "sudo usermod -aG docker $USER   # and log in again"
        return fail("this user may not use docker", mend, backend.name)
    if ran.code is None or "cannot connect" in ran.why.lower():
        return fail(f"docker does not answer: {ran.why}", "sudo systemctl start docker", backend.name)
    if not ran.ok:
        return fail(f"{image} is not on this node", f"docker pull {quote(image)}", backend.name)
    built = ran.out.split(" ")[0].strip()
    if machine == "aarch64" and built not in ("arm64", ""):
        mend = f"docker pull --platform linux/arm64 {quote(image)}"
        return fail(f"{image} is built for {built}, this is {machine}", mend, backend.name)
    identity = ran.out.strip().rpartition(" ")[2]
    return ok(f"{image} is here ({built})", backend=backend.name, fact=identity)


def _program(backend: ExpectedBackend, host: Host) -> HostCheck:
    program = backend.program
    if program is None:
        return unknown("no launch block says what is started", backend=backend.name)
    known = host.exists(program) if "/" in program else host.run(["sh", "-c", 'command -v -- "$1"', "sh", program]).ok
    if known:
        return ok(f"no image; {program} is installed", backend=backend.name)
    mend = "write the program with its full path into launch.command, or name an image"
    if "/" in program:
        return fail(f"{program} does not exist", mend, backend.name)
    return warn(f"{program} is not on the PATH of this login", mend, backend.name)


# -- units ------------------------------------------------------------------------------------------------------------


def units(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Every file that the installed units name exists: exit status 127 and 203 mean a missing file, not a crash."""
    wanted = {backend.unit: backend.name for backend in expected.backends if backend.unit}
    names = [name for name in host.names(_SYSTEMD) or () if name.endswith(".service")]
    others = [name for name in names if name not in wanted and "vllm" in (host.text(f"{_SYSTEMD}/{name}") or "")]
    asked = [*wanted, *others][:50]
    if not asked:
        yield ok("no unit that starts a vLLM is installed")
        return
    ran = host.run(["systemctl", "show", "--no-pager", f"--property={_PROPERTIES}", "--", *asked])
    if not ran.ok:
        yield unknown(f"systemctl does not answer: {ran.why}")
        return
    for block in re.split(r"\n\s*\n", ran.out.strip()):
        lines = [line.partition("=") for line in block.splitlines()]
        name = next((value for key, _, value in lines if key == "Id"), "")
        if name:
            backend = next((one for one in expected.backends if one.unit == name), None)
            yield _unit(name, [(key, value) for key, _, value in lines], backend, host)


def _unit(name: str, lines: list[tuple[str, str]], of: ExpectedBackend | None, host: Host) -> HostCheck:
    stated = dict(lines)
    backend = of.name if of is not None else None
    if stated.get("LoadState") == "not-found":
        if of is not None and of.by_unit:
            return fail(f"{name} is not installed, and the gateway starts it", _INSTALL, backend)
        mend = "gateway fleet render --out units   # and install what it writes, or start the backend by hand"
        return warn(f"{name} is not installed", mend, backend)
    missing = [file for key, value in lines if key in ("ExecStart", "ExecStartPre") for file in _missing(value, host)]
    files = re.findall(r"(\S+) \(ignore_errors=no\)", stated.get("EnvironmentFiles", ""))
    missing += [f"{file} (its environment)" for file in files if not host.exists(file)]
    if missing:
        mend = f"sudo systemctl edit --full {name}   # name a file that exists, then: sudo systemctl restart {name}"
        return fail(f"{name} names what does not exist: {', '.join(missing[:5])}", mend, backend)
    if stated.get("ExecMainStatus") in ("127", "203"):
        seen = f"{name} ended with status {stated['ExecMainStatus']}: the program it starts was not found"
        mend = f"systemctl cat {name}; sudo systemctl reset-failed {name}; sudo systemctl restart {name}"
        return fail(seen, mend, backend)
    as_user = stated.get("User", "") not in ("", "root") and stated.get("PermissionsStartOnly") != "yes"
    drops = as_user and "drop_caches" in stated.get("ExecStartPre", "")
    if drops and "privileged" not in stated.get("ExecStartPreEx", ""):
        mend = f"sudo sed -i 's|^ExecStartPre=\\([^+].*drop_caches\\)|ExecStartPre=+\\1|' {stated.get('FragmentPath')}"
        seen = f"{name} drops the page cache as user {stated.get('User')}, which fails: that needs root"
        return warn(seen, f"{mend} && sudo systemctl daemon-reload", backend)
    return ok(f"all that {name} names exists", backend=backend)


def _missing(value: str, host: Host) -> Iterator[str]:
    """The files that one `ExecStart={ path=... ; argv[]=... ; ... }` names and that are not there."""
    match = re.search(r"path=(\S+) ; argv\[\]=(.*?) ; ignore_errors=", value)
    if match is None:
        return
    path, words = match[1], match[2].split()
    if not host.exists(path):
        yield path
        return
    program = path.rsplit("/", 1)[-1]
    if program in _SHELLS and len(words) > 1 and words[1].startswith("/") and not host.exists(words[1]):
        yield words[1]
    if program == "docker" and words[1:2] == ["exec"]:
        rest = [word for word in words[2:] if not word.startswith("-")]
        script = next((word for word in rest[1:4] if re.fullmatch(r"/[\w./-]+", word)), None)
        if rest and script and not script.startswith(("/bin/", "/usr/bin/")):
            ran = host.run(["docker", "cp", f"{rest[0]}:{script}", "-"])  # works on a stopped container, too
            if not ran.ok and "could not find the file" in ran.error.lower():
                yield f"{script} in container {rest[0]}"
            elif not ran.ok and "no such container" in ran.error.lower():
                yield f"container {rest[0]}"


# -- sudo -------------------------------------------------------------------------------------------------------------


def sudo(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """The user of the gateway's ssh may start and stop the units, without a password."""
    asked = [backend for backend in expected.backends if backend.by_unit and backend.unit is not None]
    me = host.run(["id", "-un"]).out.strip()
    if not asked or me == "root" or (expected.user and me != expected.user):
        yield ok("no unit to start" if not asked else f"{me} needs no rule" if me == "root" else f"this is {me}")
        return
    ran = host.run(["sudo", "-n", "-l"])
    rules = " ".join(ran.out.split())  # sudo folds its lines
    allowed = [rule.strip() for tagged in rules.split("NOPASSWD:")[1:] for rule in re.split(r",|\(", tagged)]
    everything = ran.ok and "ALL" in allowed
    for backend in asked:
        unit = str(backend.unit).removesuffix(".service")
        needed = [f"start --no-block {unit}", f"stop {unit}"]
        missing = [one for one in needed if not any(rule.endswith(f"systemctl {one}") for rule in allowed)]
        if everything or (ran.ok and not missing):
            yield ok(f"{me} may start and stop {unit}", backend=backend.name)
            continue
        why = f": {ran.why}" if not ran.ok else ""
        seen = f"{me} may not run `sudo systemctl {(missing or needed)[0]}` without a password{why}"
        yield fail(f"{seen} (/etc/sudoers.d/spark)", _INSTALL, backend.name)
