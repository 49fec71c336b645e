"""The weights: the volume that holds them, whether all files are there, and the space for what is not.

Runs on the node: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import dirname
from shlex import quote

from gateway.apps.fleet.preflight.host import (
    CONTAINER_HOME,
    GIB,
    ExpectedBackend,
    ExpectedNode,
    Host,
    HostCheck,
    fail,
    gib,
    unknown,
    warn,
)

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.\w+$")
_LEAST = GIB  # free bytes without which no model is downloaded
_SCARCE = 20 * GIB  # free bytes below which logs and compile caches become a problem


def weights(expected: ExpectedNode, host: Host) -> Iterator[HostCheck]:
    """Every model is on this node's disk, or there is room to download it."""
    for backend in expected.backends:
        for model in backend.models:
            yield _model(backend, model, host)


def _model(backend: ExpectedBackend, model: str, host: Host) -> HostCheck:
    if "$" in model:
        return unknown(f"{model}: the name is in a variable", backend=backend.name)
    local = model.startswith(("/", "~", "./"))
    inside = model if local else cache_of(backend)
    if local and not model.startswith("/") and backend.image:
        return unknown(f"{model}: a path relative to the container", backend=backend.name)
    outside, problem = outside_path(backend, inside, host)
    if outside is None:
        mend = None if local else "write a volume for the weights under launch.volumes, e.g. ~/vllm:/models"
        return warn(f"{model}: {problem}", mend, backend.name)
    folder = outside if local else f"{outside}/models--{model.replace('/', '--')}"
    mend = f"hf download {quote(model)} --cache-dir {quote(outside)}"
    if local:
        mend = f"ls -la {quote(outside)}   # or: hf download ORG/NAME --local-dir {quote(outside)}"
    if host.names(folder) is None and host.exists(folder):
        return unknown(f"{folder} may not be read by this user", f"sudo ls -la {quote(folder)}", backend.name)
    files = folder if local else _snapshot(folder, host)
    missing, size = _missing(files, host) if files else (["all files"], 0)
    free = free_bytes(outside, host)
    room = "" if free is None else f"; {gib(free)} of disk are free"
    if not missing:
        scarce = free is not None and free < _SCARCE
        mend = "docker system df; docker image prune" if scarce else None
        return HostCheck("", "warn" if scarce else "ok", f"{model}: {gib(size)} here{room}", mend, backend.name)
    seen = f"{model}: missing in {folder}: {', '.join(missing[:3])}"
    seen += f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    needed = max((backend.weights or 0) - size, _LEAST)
    if free is not None and free < needed and not local:
        mend = f"docker system df; docker image prune   # or other weights: du -sh {quote(outside)}/*"
        return fail(f"{seen}; {gib(needed)} are to be downloaded, and {gib(free)} of disk are free", mend, backend.name)
    offline = any(backend.env.get(name, "").lower() in ("1", "true") for name in _OFFLINE)
    if local or offline:
        return fail(seen + ("" if local else "; the engine may not download"), mend, backend.name)
    return warn(f"{seen}; the first start downloads them{room}", mend, backend.name)


def cache_of(backend: ExpectedBackend) -> str:
    """The directory of the Hugging Face cache, as the engine sees it."""
    env = backend.env
    home = env.get("HF_HOME") or f"{CONTAINER_HOME if backend.image else '~'}/.cache/huggingface"
    return env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"


def outside_path(backend: ExpectedBackend, inside: str, host: Host) -> tuple[str | None, str]:
    """(the path on the node of a path that the engine sees, ""), or (None, the reason why it has none)."""
    if not backend.image:
        return _expanded(inside, host), ""
    mounts = [volume.split(":") for volume in backend.volumes if ":" in volume]
    fitting = [m for m in mounts if inside == m[1].rstrip("/") or inside.startswith(m[1].rstrip("/") + "/")]
    if not fitting:
        return None, f"no volume holds {inside}: the weights are in the image, or are downloaded at every start"
    source, target = max(fitting, key=lambda m: len(m[1]))[:2]
    rest = inside[len(target.rstrip("/")) :]
    if source.startswith(("/", "~", "$")):
        expanded = _expanded(source, host)
        return (None, f"volume {source} is in a variable") if "$" in expanded else (expanded.rstrip("/") + rest, "")
    ran = host.run(["docker", "volume", "inspect", "--format", "{{.Mountpoint}}", "--", source])
    return (ran.out.strip() + rest, "") if ran.ok else (None, f"there is no docker volume {source}")


def _expanded(path: str, host: Host) -> str:
    return re.sub(r"^(~|\$HOME|\$\{HOME\})(?=/|$)", lambda _: host.home, path)


def _snapshot(folder: str, host: Host) -> str | None:
    """The snapshot that `main` names, or the only one, if any."""
    found = host.names(f"{folder}/snapshots") or []
    main = (host.text(f"{folder}/refs/main") or "").strip()
    chosen = main if main in found else found[-1] if found else None
    return f"{folder}/snapshots/{chosen}" if chosen else None


def _missing(folder: str, host: Host) -> tuple[list[str], int]:
    """(files that are not there, bytes of the weights that are). Parts are named part-00001-of-00046."""
    if not host.exists(folder):
        return [folder], 0
    names = host.names(folder) or []
    sizes = {name: host.size(f"{folder}/{name}") or 0 for name in names if name.endswith(_WEIGHTS)}
    missing = [name for name, size in sizes.items() if not size]
    for stem, count, suffix in {(m[1], m[3], n[m.end(3) :]) for n in sizes if (m := _PART.match(n))}:
        parts = (f"{stem}-{number:05d}-of-{count}{suffix}" for number in range(1, int(count) + 1))
        missing += [part for part in parts if part not in sizes]
    if not sizes:
        missing.append("the weights")
    return [*missing, *([] if "config.json" in names else ["config.json"])], sum(sizes.values())


def free_bytes(path: str, host: Host) -> int | None:
    """Free bytes of the file system of the path, or of its nearest directory that exists."""
    while not host.exists(path) and (above := dirname(path)) != path:
        path = above
    ran = host.run(["df", "-P", "-B1", "--", path])
    cells = ran.out.strip().splitlines()[-1].split() if ran.ok and ran.out.strip() else []
    return int(cells[3]) if len(cells) > 4 and cells[3].isdigit() else None
