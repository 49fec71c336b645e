"""Memory before a start: page cache against the free-memory check, what CUDA can see, what was left in /dev/shm.

Runs on the node: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from gateway.apps.fleet.preflight.host import Host
from gateway.apps.fleet.preflight.terms import (
    GIB,
    ExpectedBackend,
    ExpectedNode,
    HostCheck,
    fail,
    gib,
    ok,
    unknown,
    warn,
)

DROP_CACHES = "sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'"
CLEAN_SHM = "sudo rm -f /dev/shm/psm_* /dev/shm/sem.mp-*"
HOLDERS = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"
_CAPPED = 62 * GIB  # bytes that CUDA sees with modeset=0
_STILL_RAN = 66 * GIB  # the largest target that was reported to start under that cap
_TOLERANCE = 0.02


def meminfo(host: Host) -> dict[str, int]:
    """/proc/meminfo in bytes; empty when it cannot be read."""
    found = re.findall(r"^(\w+):\s+(\d+) kB", host.text("/proc/meminfo") or "", re.M)
    return {name: int(size) * 1024 for name, size in found}


def page_cache(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """`--gpu-memory-utilization` is a share of all memory, and a start needs that much free: page cache counts as used
    where CUDA, and not the kernel, is asked what is free."""
    memory = meminfo(host)
    total, free = memory.get("MemTotal", 0), memory.get("MemFree", 0)
    available = memory.get("MemAvailable", free)
    if not total:
        yield unknown("/proc/meminfo cannot be read")
        return
    asked = [backend for backend in expected.backends if backend.utilization is not None]
    for backend in asked:
        yield _enough(backend, total, free, available, host)
    if not asked:
        seen = f"{gib(free)} of {gib(total)} free, {gib(max(available - free, 0))} more are page cache"
        yield ok(seen)


def _enough(backend: ExpectedBackend, total: int, free: int, available: int, host: Host) -> HostCheck:
    assert backend.utilization is not None
    wanted = backend.utilization * total
    asks = f"asks for {gib(wanted)} ({backend.utilization:g} of {gib(total)})"
    if free >= wanted:
        return ok(f"{asks}; {gib(free)} are free", backend=backend.name)
    if host.runs(backend):
        return ok(f"{asks} and runs already; {gib(free)} are free", backend=backend.name)
    if own := host.own(backend):
        return ok(f"{asks} and {own}; {gib(free)} are free", backend=backend.name)
    if available >= wanted:
        seen = f"{asks}; only {gib(free)} are free, {gib(available - free)} more are page cache, which counts as used"
        return fail(seen, DROP_CACHES, backend.name)
    fits = max(int((available / total - 0.01) * 100), 0) / 100
    seen = f"{asks}; {gib(available)} would be free even without page cache: something else holds the memory"
    mend = f"{HOLDERS}   # stop one of these, or start with --gpu-memory-utilization {fits:g}"
    return fail(seen, mend, backend.name)


def visible_memory(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """The memory is as large as routes.yaml says, and no kernel parameter hides half of it from CUDA."""
    total = meminfo(host).get("MemTotal", 0)
    if expected.memory and total and abs(total - expected.memory) > _TOLERANCE * expected.memory:
        seen = f"the kernel has {gib(total)}, routes.yaml says {gib(expected.memory)}"
        mend = f"write `memory: {total / GIB:.2f}GiB` under nodes.{expected.name}"
        yield warn(seen, mend)
    line = host.text("/proc/cmdline") or ""
    parameter = (host.text("/sys/module/nvidia_drm/parameters/modeset") or "").strip()
    if "modeset=0" not in line and parameter != "N":
        yield ok(f"{gib(total)}, no modeset=0" if total else "no modeset=0")
        return
    over = [b.name for b in expected.backends if b.utilization and b.utilization * total > _STILL_RAN]
    seen = f"modeset=0 is set: CUDA sees about {gib(_CAPPED)} of {gib(total)}"
    seen += f", less than {', '.join(over)} asks for" if over else ""
    mend = (
        "echo 'options nvidia-drm modeset=1' | sudo tee /etc/modprobe.d/zz-nvidia-drm.conf && sudo update-initramfs -u"
    )
    if "modeset=0" in line:
        mend = "sudo sed -i 's/modeset=0/modeset=1/g' /etc/default/grub && sudo update-grub"
    yield HostCheck("", "fail" if over else "warn", seen, f"{mend} && sudo reboot")


def shared_memory(_: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Segments and semaphores that dead workers left behind make the next start fail or hang."""
    names = host.names("/dev/shm")
    if names is None:
        yield unknown("/dev/shm cannot be read")
        return
    left = [name for name in names if fnmatchcase(name, "psm_*") or fnmatchcase(name, "sem.mp-*")]
    running = any(process.engine for process in host.processes())
    if not left:
        yield ok("/dev/shm has no segments of vLLM")
    elif running:
        yield ok(f"/dev/shm has {len(left)} segments, and a vLLM runs that may use them")
    else:
        size = sum(host.size(f"/dev/shm/{name}") or 0 for name in left)
        seen = f"{len(left)} segments are left in /dev/shm ({size / 1024**2:.1f} MiB), and no vLLM is seen to run"
        yield warn(seen, CLEAN_SHM)
