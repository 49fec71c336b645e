"""The GPU before a start: memory held by dead processes, the driver, clocks and temperature.

Runs on the node: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.apps.fleet.preflight.host import CommandResult, Host
from gateway.apps.fleet.preflight.terms import ExpectedNode, HostCheck, fail, ok, unknown, warn

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
