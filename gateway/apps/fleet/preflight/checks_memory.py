"""Memory and the GPU before a start: page cache against the free-memory check, what CUDA can see, what was left in
/dev/shm; memory held by dead processes, the driver, clocks and temperature.

Runs on the node: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from gateway.apps.fleet.preflight.host import (
    GIB,
    CommandResult,
    ExpectedBackend,
    ExpectedNode,
    Host,
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


REBOOT = "sudo reboot"
UPDATE = "sudo apt-get update && sudo apt-get dist-upgrade && sudo reboot"
COMPUTE_APPS = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
DRIVER = ("--query-gpu=driver_version", "--format=csv,noheader")
CLOCKS = "--query-gpu=temperature.gpu,clocks.sm,clocks.max.sm,{}.active"
_FIRST_FOR_CUDA_13 = (580,)
_NGC_BUILT_FOR = (590, 44)  # nvcr.io/nvidia/vllm:25.12 and later run on older ones by forward compatibility
_HOT = 85  # degrees Celsius
_SLOWED = {
    0x08: "the hardware slows it down",
    0x20: "the driver slows it down for its temperature",
    0x40: "the hardware slows it down for its temperature",
    0x80: "the power supply slows it down",
}


def _no_answer(ran: CommandResult) -> HostCheck:
    """A driver that does not answer holds up every start: only a reboot helps."""
    if "not installed" in ran.error:
        return unknown(ran.why)
    return fail(f"nvidia-smi does not work: {ran.why}", REBOOT)


def zombies(_: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """A process that is gone and still has GPU memory: no program can free that memory."""
    ran = host.smi(*COMPUTE_APPS)
    if not ran.ok:
        yield _no_answer(ran)
        return
    if not host.sees_all_processes():
        yield unknown("the node's processes cannot be seen from here (a container, or hidepid)")
        return
    apps = re.findall(r"^\s*(\d+)\s*,\s*(.*?)\s*$", ran.out, re.M)
    dead = [f"{pid} ({used})" for pid, used in apps if not host.exists(f"/proc/{pid}")]
    if dead:
        seen = f"processes that are gone still have GPU memory: {', '.join(dead[:20])}; only a reboot frees it"
        yield fail(seen, REBOOT)
    else:
        yield ok(f"{len(apps)} processes have GPU memory, all of them alive")


def driver(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """CUDA 13 images need a driver of the 580 series or later."""
    ran = host.smi(*DRIVER)
    if "not installed" in ran.error:
        yield fail("nvidia-smi is not installed: there is no driver", UPDATE)
        return
    version = re.match(r"\s*(\d+(?:\.\d+)+)", ran.out)
    if not ran.ok or version is None:
        yield _no_answer(ran)
        return
    number = tuple(int(part) for part in version[1].split("."))
    ngc = [b.name for b in expected.backends if (b.image or "").startswith("nvcr.io/nvidia/vllm:")]
    if number < _FIRST_FOR_CUDA_13:
        yield fail(f"driver {version[1]} is older than 580, which CUDA 13 needs", UPDATE)
    elif ngc and number < _NGC_BUILT_FOR:
        seen = f"driver {version[1]}: NVIDIA's images since 25.12 are built for 590.44 ({', '.join(ngc)})"
        seen += "; they run only if their log says that CUDA forward compatibility is enabled"
        yield warn(seen, UPDATE, fact=version[1])
    else:
        yield ok(f"driver {version[1]}", fact=version[1])


def clocks(_: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Temperature, and whether something holds the clock down. Figures that GB10 does not have are left out."""
    ran = host.smi(CLOCKS.format("clocks_event_reasons"), "--format=csv,noheader,nounits")
    if not ran.ok and ran.code is not None:  # drivers before 535 have the older name
        ran = host.smi(CLOCKS.format("clocks_throttle_reasons"), "--format=csv,noheader,nounits")
    if not ran.ok:
        yield _no_answer(ran)
        return
    cells = [cell.strip() for cell in (ran.out.strip().splitlines() or [""])[0].split(",")]
    degrees, clock, most, mask = (cells + [""] * 4)[:4]
    reasons = int(mask, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", mask) else 0
    slowed = [words for bit, words in _SLOWED.items() if reasons & bit]
    hot = degrees.isdigit() and int(degrees) >= _HOT
    figures = [f"{degrees} degrees"] if degrees.isdigit() else []
    figures += [f"{clock} of {most} MHz"] if clock.isdigit() and most.isdigit() else []
    seen = ", ".join([*figures, *slowed]) or "the driver tells neither temperature nor clock"
    mend = "nvidia-smi -q -d TEMPERATURE,PERFORMANCE,POWER   # let it cool down, and free its air inlet"
    if reasons & 0x80:
        mend = "sudo shutdown -h now   # then take the power supply out of the socket for a minute"
    if slowed or hot:
        yield warn(seen, mend)
    else:
        yield HostCheck("", "ok" if figures else "unknown", seen)
