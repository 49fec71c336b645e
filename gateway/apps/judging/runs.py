"""Runs the batches of several judges over one file, through the gateway's batch API, and fetches their results. Each
step is saved in the folder, so running it again goes on where it was."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.cli.running import WAIT, GatewayClient, GatewayRefusal, GatewayUnreachable

INPUT = "input.jsonl"
LINE_MOST = 64 * 1024 * 1024  # bytes
_ODD = re.compile(r"[^\w.-]")


class FolderError(Exception):
    """The folder or a file in it is broken; the text says how."""


@dataclass(slots=True)
class JudgeState:
    """How far the batch of one alias is. `input`: SHA-256 of the lines; `file` and `batch`: their names at the gateway;
    "" = not begun."""

    alias: str
    input: str
    file: str = ""
    batch: str = ""
    status: str = ""
    local_only: bool = False  # it was uploaded so that nothing of it leaves the LAN

    @property
    def name(self) -> str:
        return _ODD.sub("_", self.alias)

    def output(self, folder: Path) -> Path:
        return folder / f"{self.name}.output.jsonl"

    def errors(self, folder: Path) -> Path:
        return folder / f"{self.name}.errors.jsonl"

    def save(self, folder: Path) -> None:
        path = folder / f"{self.name}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(part, path)


def judges_in(folder: Path) -> list[JudgeState]:
    """Raises FolderError."""
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}: `gateway batch run` makes it")
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(JudgeState(**json.loads(path.read_text())))
        except (ValueError, TypeError, OSError, RecursionError) as error:
            raise FolderError(f"{path} cannot be read: {error}") from None
    return found


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines. Raises FolderError with the line."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_MOST):
                number += 1
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise FolderError(f"{path}:{number}: not JSON: {error}") from None
                if not isinstance(row, dict):
                    raise FolderError(f"{path}:{number}: not a JSON object")
                yield row
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error}") from None


def answer_of(row: dict[str, Any]) -> str | None:
    """The text of an output row's first choice; None where it has none."""
    try:
        choice = row["response"]["body"]["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) else None


def question_of(row: dict[str, Any]) -> str:
    """The last message of an input line, as text; "" where it has none."""
    body = row.get("body", row)
    messages = body.get("messages") if isinstance(body, dict) else None
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


CHAT = "/v1/chat/completions"
EVERY = 1.0  # seconds between two looks at a batch
AWAY_MOST = 300.0  # seconds for which the gateway may be away
BATCH_KEYS = ("id", "status")  # texts that every batch has
ENDED = ("completed", "failed", "expired", "cancelled")
PIECE = 1024 * 1024  # bytes

OnLook = Callable[[Mapping[str, Mapping[str, Any]]], None]


class BatchClient(GatewayClient):
    """One gateway's batch API. Raises GatewayUnreachable, GatewayRefusal."""

    def keep_local(self) -> None:
        """Nothing of what is uploaded from now on leaves the LAN."""
        self._headers["x-gateway-local-only"] = "1"

    def upload(self, name: str, path: Path) -> str:
        """The id of the new file."""
        with path.open("rb") as file:
            sent = {"file": (name, file, "application/jsonl")}
            # The time to send a file is not bounded: each of its parts has WAIT seconds, and so has the answer.
            options: dict[str, Any] = {"data": {"purpose": "batch"}, "files": sent, "timeout": WAIT}
            return str(self._with(("id",), self._ask("POST", "/v1/files", math.inf, **options))["id"])

    def begin(self, file: str, alias: str, when: Mapping[str, str]) -> dict[str, Any]:
        metadata = {"alias": alias[:500], **({"when": json.dumps(when)} if when else {})}
        body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", "metadata": metadata}
        return self._with(BATCH_KEYS, self.post("/v1/batches", body))

    def batch(self, name: str) -> dict[str, Any]:
        return self._with(BATCH_KEYS, self.get(f"/v1/batches/{quote(name, safe='')}"))

    def cancel(self, name: str) -> dict[str, Any]:
        return self._with(BATCH_KEYS, self.post(f"/v1/batches/{quote(name, safe='')}/cancel", {}))

    def download(self, name: str, path: Path) -> None:
        """Write the content of a file; the file at `path` is complete or not there."""
        part = path.with_name(path.name + ".part")
        with self._stream(f"/v1/files/{quote(name, safe='')}/content") as answer, part.open("wb") as file:
            for piece in answer.iter_bytes(PIECE):
                file.write(piece)
        os.replace(part, path)

    def _with(self, texts: Sequence[str], answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, if it has these texts."""
        if not all(isinstance(answer.get(name), str) for name in texts):
            raise GatewayRefusal(200, f"what listens at {self.url} does not answer as a gateway")
        return answer


def run(
    asking: BatchClient,
    source: Path,
    aliases: Sequence[str],
    folder: Path,
    look: OnLook,
    when: Mapping[str, str],
    *,
    local_only: bool = False,
) -> list[dict[str, Any]]:
    """Begin the batches that have not begun, wait until all have ended, and fetch the results. `look` is called with
    the batches by alias. `when`: the mode and the times of the day that they are for; empty = any. `local_only`:
    nothing of them leaves the LAN; a folder that was begun so stays so. Returns the batches. Raises GatewayUnreachable,
    GatewayRefusal, FolderError."""
    if not source.exists():
        raise FolderError(f"there is no file {source}")
    _check_names(aliases)
    folder.mkdir(parents=True, exist_ok=True)
    _keep_input(source, folder)
    digest = _digest(folder / INPUT)
    if local_only or any(state.local_only for state in judges_in(folder)):
        asking.keep_local()
        local_only = True
    states = [_begun(asking, alias, digest, folder, when, local_only=local_only) for alias in aliases]
    batches = _wait(asking, states, look)
    for state, batch in zip(states, batches, strict=True):
        fetch(asking, state, batch, folder)
    return batches


def fetch(asking: BatchClient, state: JudgeState, batch: Mapping[str, Any], folder: Path) -> None:
    """Fetch the results of a batch that has ended, and remember its status."""
    for key, path in (("output_file_id", state.output(folder)), ("error_file_id", state.errors(folder))):
        if batch.get(key):
            asking.download(str(batch[key]), path)
        else:
            path.write_bytes(b"")
    state.status = str(batch["status"])
    state.save(folder)


def _check_names(aliases: Sequence[str]) -> None:
    """Raises FolderError for two aliases whose files would have one name."""
    known: dict[str, str] = {}
    for alias in aliases:
        name = JudgeState(alias, "").name
        if known.setdefault(name, alias) != alias:
            raise FolderError(f"the files of {known[name]} and {alias} have the same name, {name}: use two folders")


def _keep_input(source: Path, folder: Path) -> None:
    """Keep the lines as they were given. Raises FolderError if the folder is another input's."""
    kept = folder / INPUT
    if not kept.exists():
        part = kept.with_suffix(".part")
        shutil.copyfile(source, part)
        os.replace(part, kept)
    elif _digest(kept) != _digest(source):
        raise FolderError(f"{folder} has the answers to another file: name another folder, or delete this one")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error}") from None


def _begun(
    asking: BatchClient, alias: str, digest: str, folder: Path, when: Mapping[str, str], *, local_only: bool
) -> JudgeState:
    """Its batch, begun now or before. Raises FolderError where it is to be local and was begun otherwise."""
    known = {state.alias: state for state in judges_in(folder)}
    state = known.get(alias) or JudgeState(alias, digest, local_only=local_only)
    if local_only and not state.local_only:
        raise FolderError(f"{folder}: {alias} was begun without --local-only, and may have left the LAN: use another")
    if not state.file:
        lines = folder / f"{state.name}.lines"
        with lines.open("wb") as file:
            file.writelines(_encoded(line) for line in lines_for(alias, folder / INPUT))
        state.file = asking.upload(f"{state.name}.jsonl", lines)
        lines.unlink()
        state.save(folder)
    if not state.batch:
        state.batch = str(asking.begin(state.file, alias, when)["id"])
        state.save(folder)
    return state


def lines_for(alias: str, path: Path) -> Iterator[dict[str, Any]]:
    """The lines of the input, as requests to this alias. Raises FolderError for a line that is none."""
    for number, row in enumerate(rows_of(path), 1):
        body = row.get("body")
        if body is None:
            body = {name: value for name, value in row.items() if name != "custom_id"}
        name = row.get("custom_id")
        if not isinstance(body, dict) or "messages" not in body or not isinstance(name, str):
            raise FolderError(f'{path}: line {number} is neither a line of a batch nor {{"custom_id", "messages"}}')
        yield {"custom_id": name, "method": "POST", "url": CHAT, "body": {**body, "model": alias}}


def _encoded(line: dict[str, Any]) -> bytes:
    """Its text as it is, because an escaped one may be twice as long; half a character can only be escaped."""
    try:
        return json.dumps(line, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(line).encode() + b"\n"


def _wait(asking: BatchClient, states: Sequence[JudgeState], look: OnLook) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    away_since: float | None = None
    while True:
        try:
            for state in states:
                if found.get(state.alias, {}).get("status") not in ENDED:
                    found[state.alias] = asking.batch(state.batch)
            away_since = None
        except GatewayUnreachable:
            now = time.monotonic()
            away_since = away_since or now
            if now - away_since > AWAY_MOST:
                raise
        look(found)
        if len(found) == len(states) and all(batch["status"] in ENDED for batch in found.values()):
            return [found[state.alias] for state in states]
        time.sleep(EVERY)
