"""`gateway sim`: one simulated backend, or one of the demo's started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from math import inf
from typing import Any, TypeVar
from urllib.parse import quote

import click

from gateway.cli.options import examples, fail, port_option
from simulator import SimOllama, SimVllm
from simulator.base import Sim
from simulator.formats import FORMATS

F = TypeVar("F", bound=Callable[..., Any])
_PARSERS = click.Choice([*sorted(FORMATS), "none"])


def speedup_option(command: F) -> F:
    """`--speedup FACTOR`, given to the command as `speedup: float`."""
    option = click.option(
        "--speedup",
        default=1.0,
        show_default=True,
        callback=_checked_speedup,
        help="Simulated seconds per real second.",
    )
    return option(command)


def _checked_speedup(_: click.Context, __: click.Parameter, factor: float) -> float:
    if not 0 < factor < inf:
        raise click.BadParameter(f"{factor} is not a number above 0: write 1, 0.5 or 20")
    return factor


@examples("gateway sim vllm --port 8001", "gateway sim ollama")
@click.group(name="sim")
def command() -> None:
    """Run one simulated backend, or start and stop those of `gateway demo`.

    Faults are controlled at /_sim (docs/simulator.md).
    """


@examples(
    "gateway sim vllm --port 8001 --model Qwen3.6-35B-A3B --tool-parser qwen3_xml --reasoning-parser qwen3",
    "gateway sim vllm --port 0 --cold-start 20 --slots 2",
)
@command.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@port_option("0 = a free one.", 8001)
@click.option("--name", default="vllm", show_default=True)
@click.option("--model", "models", multiple=True, default=["model"], show_default=True, help="Served name; repeatable.")
@click.option("--context", default=131072, show_default=True, help="--max-model-len, tokens.")
@click.option("--slots", default=8, show_default=True, help="--max-num-seqs.")
@click.option("--prefill", default=6200.0, show_default=True, help="Prompt tokens per second.")
@click.option("--decode", default=100.0, show_default=True, help="Answer tokens per second of one stream.")
@click.option("--tool-parser", type=_PARSERS, default="hermes", show_default=True, help="--tool-call-parser.")
@click.option("--auto-tools/--no-auto-tools", default=True, help="--enable-auto-tool-choice.")
@click.option("--reasoning-parser", default="none", show_default=True, help="--reasoning-parser.")
@click.option("--family", type=_PARSERS, help="Format in which the model writes calls [default: the tool parser's].")
@click.option("--thinking", type=click.Choice(["optional", "always", "never"]), help="[default: by reasoning parser]")
@click.option("--api-key", help="Guard /v1 with this key.")
@click.option("--pooling", is_flag=True, help="An embedding server.")
@click.option("--vision", is_flag=True, help="Take images.")
@click.option("--prefix-cache/--no-prefix-cache", default=True)
@click.option("--queue-limit", type=int, help="Waiting requests before a 503 [default: none].")
@click.option("--cold-start", default=0.0, show_default=True, help="Seconds until the port opens.")
@speedup_option
def vllm(host: str, port: int, models: tuple[str, ...], family: str | None, **settings: Any) -> None:
    """A simulated `vllm serve` 0.32."""
    _run(SimVllm(served=models, family=None if family == "none" else family, **settings), host, port)


@examples("gateway sim ollama --model qwen3:8b --model qwen3:32b --load 10")
@command.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@port_option("0 = a free one.", 11434)
@click.option("--name", default="ollama", show_default=True)
@click.option("--model", "models", multiple=True, default=["qwen3:8b"], show_default=True, help="Repeatable.")
@click.option("--context", default=4096, show_default=True, help="OLLAMA_CONTEXT_LENGTH.")
@click.option("--slots", default=1, show_default=True, help="OLLAMA_NUM_PARALLEL.")
@click.option("--prefill", default=2500.0, show_default=True, help="Prompt tokens per second.")
@click.option("--decode", default=38.0, show_default=True, help="Answer tokens per second of one stream.")
@click.option("--load", default=4.0, show_default=True, help="Seconds that loading a model takes.")
@speedup_option
def ollama(host: str, port: int, **settings: Any) -> None:
    """A simulated Ollama."""
    _run(SimOllama(**settings), host, port)


def _run(sim: Sim, host: str, port: int) -> None:
    try:
        asyncio.run(serve_until_signal(sim, host, port))
    except OSError as problem:
        raise click.ClickException(f"{host}:{port} cannot be used ({problem}); choose another --port") from None


async def serve_until_signal(sim: Sim, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then end as vLLM does: requests in flight finish with `abort`."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stopping.set)
    async with sim.serve(port, host) as url:
        click.echo(f"{sim.name} on {url} (steer it at {url}/_sim)")
        await stopping.wait()
        await sim.terminate()


# -- the backends of a running demo -----------------------------------------------------------------------------------

_control_option = click.option(
    "--control",
    default="http://127.0.0.1:4001",
    show_default=True,
    help="The control port, as `gateway demo` prints it.",
)


@examples("gateway sim start ds4", "gateway sim start ds4 --control http://127.0.0.1:4101")
@command.command()
@click.argument("backend")
@_control_option
def start(backend: str, control: str) -> None:
    """Start a backend of the demo, and wait until it serves.

    Exit code 1: it could not start, and its last words say why; or there is no such backend or demo.
    """
    state = _order(control, backend, "start", {"wait": True})
    if not state["alive"]:
        fail(state["output"] or f"{backend} ended with exit code {state['exit_code']} before it served")
    click.echo(f"{backend} serves at {state['url']}")


@examples("gateway sim stop qwen36")
@command.command()
@click.argument("backend")
@_control_option
def stop(backend: str, control: str) -> None:
    """Stop a backend of the demo by SIGTERM, and wait until its memory is free.

    Exit code 1: there is no such backend or demo.
    """
    _order(control, backend, "stop", {})
    click.echo(f"{backend} has stopped")


def _order(control: str, backend: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
    """The backend's state after the order (`GET /_sim`). Exits 1 when nothing was ordered."""
    import httpx

    url = f"{control.rstrip('/')}/_sim/{quote(backend, safe='')}/{action}"
    try:
        answer = httpx.post(url, json=body, timeout=httpx.Timeout(None, connect=5.0), trust_env=False).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        fail(f"no simulated fleet at {control} ({error}): see what `gateway demo` prints")
    if not isinstance(answer, dict) or "alive" not in answer:
        reason = answer.get("error") if isinstance(answer, dict) else None
        fail(reason if isinstance(reason, str) else f"no simulated fleet at {control}: see what `gateway demo` prints")
    return answer
