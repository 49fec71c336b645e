"""A DGX Spark as the preflight checks see it: files below a root, and the recorded answers of its commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gateway.apps.fleet.preflight.host import (
    CONTAINER_HOME,
    CommandResult,
    ExpectedBackend,
    ExpectedNode,
    Host,
    HostCheck,
)
from gateway.apps.fleet.preflight.node import CHECKS

MEMINFO = """\
MemTotal:       125482496 kB
MemFree:        {free} kB
MemAvailable:   {available} kB
Buffers:           91232 kB
Cached:          4712340 kB
"""
TOTAL = 125482496 * 1024  # 119.67 GiB
SOCKETS = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
NOT_INSTALLED = "is not installed"
QWEN = ExpectedBackend(
    name="qwen36",
    port=8001,
    utilization=0.55,
    image="nvcr.io/nvidia/vllm:26.04-py3",
    models=("RedHatAI/Qwen3.6-35B-A3B-NVFP4",),
    served="RedHatAI/Qwen3.6-35B-A3B-NVFP4",
    volumes=(f"/home/user/.cache/huggingface:{CONTAINER_HOME}/.cache/huggingface",),
    unit="spark-qwen36.service",
)
DS4 = ExpectedBackend(
    name="ds4",
    port=8000,
    master_port=29501,
    utilization=0.9,
    image="ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest",
    models=("/models/DeepSeek-V4-Flash",),
    served="deepseek-v4-flash",
    volumes=("/home/user/models:/models", "~/.cache/vllm:/cache/vllm"),
    env={"NCCL_SOCKET_IFNAME": "bond0", "NCCL_IB_HCA": "rocep1s0f0,rocep1s0f1", "HF_HUB_OFFLINE": "1"},
    nodes=2,
    unit="spark-ds4.service",
)
HEALTHY = {
    "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader": "4711, [N/A]\n",
    "nvidia-smi --query-gpu=driver_version --format=csv,noheader": "590.48.01\n",
    "nvidia-smi --query-gpu=temperature.gpu,clocks.sm,clocks.max.sm,clocks_event_reasons.active"
    " --format=csv,noheader,nounits": "46, 2411, 3003, 0x0000000000000001\n",
    "uname -m": "aarch64\n",
    "docker ps --format {{.Names}}\t{{.Ports}}": "",
    "docker image inspect": "arm64 sha256:4f0c\n",
    "systemctl show-environment": "LANG=en_US.UTF-8\nPATH=/usr/bin:/bin\n",
    "systemctl show --no-pager": "Id=spark-qwen36.service\nLoadState=loaded\nUser=milo\nPermissionsStartOnly=yes\n"
    "ExecStart={ path=/usr/bin/docker ; argv[]=/usr/bin/docker run --rm image ; ignore_errors=no ; pid=0 }\n"
    "ExecMainStatus=0\n",
    "timedatectl show": "yes\n",
    "df -P": "Filesystem 1-blocks Used Available Capacity Mounted on\n/dev/nvme0n1p2 4e12 1e12 900000000000 1% /\n",
}


class Spark:
    """Healthy, until a test changes a file or an answer. `asked`: the commands in order."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.answers: dict[str, str | CommandResult] = dict(HEALTHY)
        self.pages: dict[str, str] = {}
        self.asked: list[list[str]] = []
        self.memory(free_gib=110.0, available_gib=112.0)
        self.process(1, 0, "/sbin/init")
        self.process(4711, 1, "/usr/bin/Xorg")
        self.file("/proc/net/tcp", SOCKETS)
        self.file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz quiet")
        self.file("/dev/shm/.keep")
        self.file("/usr/bin/docker")
        self.file("/etc/environment", 'PATH="/usr/local/bin"\n')
        self.interface("bond0")
        for adapter in ("rocep1s0f0", "rocep1s0f1"):
            self.file(f"/sys/class/infiniband/{adapter}/ports/1/state", "4: ACTIVE\n")
        self.file("/etc/systemd/system/spark-qwen36.service", "[Service]\nExecStart=/usr/bin/docker run --rm image\n")
        self.weights("/home/user/.cache/huggingface/hub/models--RedHatAI--Qwen3.6-35B-A3B-NVFP4/snapshots/abc", 2)
        self.weights("/home/user/models/DeepSeek-V4-Flash", 46)

    # -- what a test changes ------------------------------------------------------------------------------------------

    def file(self, path: str, text: str = "") -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def memory(self, *, free_gib: float, available_gib: float) -> None:
        free, available = (int(size * 1024**2) for size in (free_gib, available_gib))
        self.file("/proc/meminfo", MEMINFO.format(free=free, available=available))

    def process(self, pid: int, parent: int, command: str) -> None:
        self.file(f"/proc/{pid}/cmdline", command.replace(" ", "\0") + "\0")
        self.file(f"/proc/{pid}/status", f"Name:\t{command.split('/')[-1][:15]}\nPPid:\t{parent}\n")

    def socket(self, port: int, inode: int, pid: int | None) -> None:
        line = f"   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 {inode} 1\n"
        self.file("/proc/net/tcp", SOCKETS + line)
        if pid is not None:
            folder = self.root / f"proc/{pid}/fd"
            folder.mkdir(parents=True, exist_ok=True)
            os.symlink(f"socket:[{inode}]", folder / "7")

    def interface(self, name: str, *, mtu: int = 9000, state: str = "up") -> None:
        self.file(f"/sys/class/net/{name}/mtu", f"{mtu}\n")
        self.file(f"/sys/class/net/{name}/operstate", f"{state}\n")

    def weights(self, folder: str, parts: int) -> None:
        self.file(f"{folder}/config.json", "{}")
        for part in range(1, parts + 1):
            self.file(f"{folder}/model-{part:05d}-of-{parts:05d}.safetensors", "w" * 1000)

    # -- what the checks see ------------------------------------------------------------------------------------------

    def host(self) -> Host:
        return Host(str(self.root), self.run, self.pages.get, home="/home/user")

    def run(self, argv: Sequence[str]) -> CommandResult:
        self.asked.append(list(argv))
        line = " ".join(argv)
        found = next((answer for start, answer in self.answers.items() if line.startswith(start)), None)
        if found is None:
            return CommandResult(None, error=f"{argv[0]} {NOT_INSTALLED}")
        return CommandResult(0, found) if isinstance(found, str) else found

    def seen(self, check: str, *backends: ExpectedBackend, memory: int | None = None) -> list[HostCheck]:
        """The results of one check."""
        node = ExpectedNode("spark1", memory or TOTAL, "http://spark1:9835/metrics", backends or (QWEN,))
        return list(self._of(check, node))

    def _of(self, check: str, node: ExpectedNode) -> Iterator[HostCheck]:
        return (replace(found, check=check) for found in CHECKS[check](node, self.host()))


def one(checks: list[HostCheck]) -> HostCheck:
    (check,) = checks
    return check


def is_mended(check: HostCheck, verdict: str, words: str, mend: str) -> None:
    assert (check.verdict, words in check.seen, mend in (check.mend or "")) == (verdict, True, True), check
