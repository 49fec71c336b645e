"""About RATE requests a second to the gateway, for SECONDS or until the file OUT.stop exists; a line for each into OUT.

usage: trickle.py OUT SECONDS RATE ALIAS[,ALIAS]
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

HOST, PORT = "10.77.0.2", 4000


def ask(alias: str, number: int) -> dict[str, Any]:
    """One request, every other one streamed: `end` is `whole`, how it broke, or the code of the error."""
    stream = number % 2 == 0
    messages = [{"role": "user", "content": f"{number % 97}*17 and then 30 words, please"}]
    body = json.dumps({"model": alias, "stream": stream, "max_tokens": 40, "messages": messages})
    connection = http.client.HTTPConnection(HOST, PORT, timeout=120)
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    try:
        text = answer.read().decode()
    except http.client.IncompleteRead as cut:
        text = cut.partial.decode() + " (cut)"
    row: dict[str, Any] = {"status": answer.status, "by": answer.getheader("x-gateway-backend")}
    if answer.status != 200:
        row["end"] = json.loads(text).get("error", {}).get("code")
    elif not stream:
        row["end"] = "whole" if json.loads(text)["choices"][0]["finish_reason"] in ("stop", "length") else text[-200:]
    elif "data: [DONE]" in text and '"error"' not in text:
        row["end"] = "whole"
    else:
        row["end"] = ("broken, told: " if '"error"' in text else "broken: ") + text[-200:]
    return row


def main(out: str, seconds: float, rate: float, aliases: list[str]) -> None:
    begun, lock = time.time(), threading.Lock()
    threads: list[threading.Thread] = []
    stop = Path(f"{out}.stop")
    with open(out, "w", buffering=1) as file:

        def one(number: int) -> None:
            alias, at = aliases[number % len(aliases)], time.time()
            try:
                row = ask(alias, number)
            except Exception as error:  # what came of it is told, whatever it is
                row = {"status": 0, "end": f"{type(error).__name__}: {error}"}
            row |= {"at": round(at - begun, 2), "took": round(time.time() - at, 2), "alias": alias}
            with lock:
                file.write(json.dumps(row) + "\n")

        while time.time() - begun < seconds and not stop.exists():
            threads.append(threading.Thread(target=one, args=(len(threads),)))
            threads[-1].start()
            time.sleep(max(0.0, begun + len(threads) / rate - time.time()))
        for thread in threads:
            thread.join(130)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4].split(","))
