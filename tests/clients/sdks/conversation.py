"""What every SDK's program does: one conversation, in which two of three backends are killed. It runs in the SDKs' own
environments, so it imports nothing that is not Python's own."""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.waiting import wait_until

MODEL = "spark-qwen36"
PATIENCE = 60.0  # seconds
PIECES = 10  # of a stream, before its backend is killed
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
Heard = Callable[[], None]


def get_weather(city: str) -> str:
    return f"{len(city)} degrees in {city}"


@dataclass
class Turn:
    """What the model said: text, and calls as (id, name, arguments in JSON)."""

    text: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)


class Client(Protocol):
    """One SDK with one conversation, which both methods append to. A stream reports each piece of text to `heard`."""

    streams: bool

    def ask(self, text: str, heard: Heard) -> Turn: ...

    def tell(self, call: str, result: str, heard: Heard) -> Turn: ...


class Simulator:
    """The control port of the demo."""

    def __init__(self, control: str) -> None:
        self._control = control
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def kill(self, backend: str) -> None:
        request = urllib.request.Request(f"{self._control}/_sim/{backend}/kill", b"", method="POST")
        self._open(request, timeout=PATIENCE).close()

    def kill_at_work(self, backend: str) -> threading.Thread:
        """Kill it as soon as it has a request under way."""

        def at_work() -> bool:
            with self._open(f"{self._control}/_sim/{backend}", timeout=PATIENCE) as reply:
                return bool(json.load(reply)["inflight"])

        def wait() -> None:
            wait_until(at_work, PATIENCE)
            self.kill(backend)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread


class KillsInMidStream:
    """Called for each piece of text; kills the backend at a certain one."""

    def __init__(self, simulator: Simulator, backend: str) -> None:
        self._simulator, self._backend, self._heard = simulator, backend, 0

    def __call__(self) -> None:
        self._heard += 1
        if self._heard == PIECES:
            self._simulator.kill(self._backend)


def converse(client: Client, simulator: Simulator) -> dict[str, Any]:
    """A call that is executed, its backend killed before the result is told; a long answer, its backend killed in the
    middle; a last question. Returns what was said, and the exception of the long answer if there was one."""
    asked = client.ask("What is the weather in Oslo?", _unheard)
    ((call, name, arguments),) = asked.calls
    said: dict[str, Any] = {"called": [name, arguments]}
    simulator.kill("qwen36")
    said["told"] = client.tell(call, get_weather(**json.loads(arguments)), _unheard).text
    try:
        if client.streams:
            long = client.ask("Say it in 3000 words.", KillsInMidStream(simulator, "gemma4"))
        else:
            killing = simulator.kill_at_work("gemma4")
            long = client.ask("Say it in 300 words.", _unheard)
            killing.join(PATIENCE)
        said["words"] = len(long.text.split())
    except Exception as error:  # which one it is, is the question
        said["broke"] = [type(error).__name__, str(error)]
    said["last"] = client.ask("What is 12*17?", _unheard).text
    return said


def _unheard() -> None:
    pass


def main(make: Callable[[str, str, str], Client]) -> None:
    """`PROGRAM BASE_URL KEY CONTROL KIND`: one conversation of this kind, told as JSON."""
    base_url, key, control, kind = sys.argv[1:]
    print(json.dumps(converse(make(base_url, key, kind), Simulator(control))))
