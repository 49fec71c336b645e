"""One run: replicas, what stands before them, the agents, and the figures."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from time import sleep
from urllib.request import urlopen

from bench import routers
from bench.agents.client import Answer, ask, body_of
from bench.agents.hashing import by_hash
from bench.agents.scenarios import (
    ANSWER,
    CACHE,
    CROWDING,
    DECODE,
    DIES,
    PREFILL,
    RETURNS,
    SHARED,
    THINKS,
    Agent,
    Scenario,
)
from bench.ports import free_ports
from gateway.config.load import load_text
from gateway.http.app import App
from gateway.http.server import listen, make_server
from simulator import SimVllm

MODEL = "agent"
ROUTES = """
server: {{data: {data}}}
defaults: {{health: {{canary: none, every: 1s}}}}
backends:
{backends}
aliases: {{agent: [[{names}]]}}
"""
_WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu"


@dataclass
class Figures:
    """What one run came to. `wall`: seconds. `first`: of each turn, seconds until its first token. `computed`: prompt
    tokens; `asked`: those of all prompts. `moved`: turns at another replica than the one before."""

    wall: float = 0.0
    first: list[float] = field(default_factory=list)
    computed: int = 0
    asked: int = 0
    moved: int = 0
    broken: int = 0

    def quantile(self, part: float) -> float:
        ordered = sorted(self.first)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


class Run:
    """The agents' side of a run. `choose`: the ports to ask for a turn, in order."""

    def __init__(self, scenario: Scenario, seed: int, choose: Callable[[Agent], Sequence[int]]) -> None:
        self.scenario, self.seed, self.choose = scenario, seed, choose
        self.figures = Figures()
        self._system = _text(Random(seed), SHARED)
        self._said: dict[str, list[tuple[str, str]]] = {}

    async def run(self, agents: Sequence[Agent]) -> None:
        await asyncio.gather(*(self._agent(agent, number) for number, agent in enumerate(agents)))

    async def _agent(self, agent: Agent, number: int) -> None:
        draw, before = Random(f"{self.seed} {agent.name}"), ""
        await asyncio.sleep(draw.random() * THINKS)
        turns = self._said[agent.name] = list(self._said.get(agent.parent or "", ()))[: agent.begun]
        subs: list[asyncio.Task[None]] = []
        for turn in range(agent.turns):
            said = _text(draw, agent.new)
            headers = {"x-session-id": agent.name} if self.scenario.ids else {}
            body = body_of(MODEL, self._system, turns, said, ANSWER)
            answer, port = await self._ask(agent, body, headers)
            where = answer.backend or str(port)
            self.figures.first.append(answer.first)
            self.figures.broken += not answer.whole
            self.figures.moved += before not in ("", where)
            before = where
            turns.append((said, _text(draw, ANSWER)))
            if turn + 1 in self.scenario.branches and agent.parent is None:
                for sub in range(2):
                    name = f"{agent.name}-{turn}-{sub}"
                    child = Agent(name, 3, agent.new, agent.name, len(turns))
                    subs.append(asyncio.create_task(self._agent(child, number)))
            await asyncio.sleep(THINKS * (0.5 + draw.random()))
        await asyncio.gather(*subs)

    async def _ask(self, agent: Agent, body: bytes, headers: dict[str, str]) -> tuple[Answer, int]:
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            for port in self.choose(agent):
                if (answer := await ask(port, body, headers)) is not None:
                    answer.first += clock() - began if not answer.first else 0.0
                    return answer, port
            await asyncio.sleep(0.1)


def _text(draw: Random, tokens: int) -> str:
    """A text of so many tokens, of four bytes each."""
    return " ".join(draw.choices(_WORDS.split(), k=tokens))[: tokens * 4]


def replicas(scenario: Scenario, speedup: float = 1.0) -> list[SimVllm]:
    return [
        SimVllm(
            f"r{number}", [MODEL], slots=256, prefill=PREFILL * speed, decode=DECODE * speed, tool_parser=None,
            crowding=CROWDING, prefix_cache=True, cache_tokens=CACHE, speedup=speedup, chunk=8192,
        )
        for number, speed in enumerate(scenario.speeds)
    ]  # fmt: skip


@asynccontextmanager
async def gateway_before(urls: Sequence[str]) -> AsyncIterator[int]:
    """The port of the gateway before these replicas."""
    with tempfile.TemporaryDirectory(prefix="bench-agents-") as data:
        names = [f"r{number}" for number in range(len(urls))]
        rows = "\n".join(f"  {name}: {{url: {url}, slots: 256}}" for name, url in zip(names, urls, strict=True))
        routes = ROUTES.format(data=data, backends=rows, names=", ".join(names))
        snapshot = load_text(routes, "routes.yaml", {}).snapshot
        app = App(replace(snapshot, server=replace(snapshot.server, log="none")), "repeated")
        sock = listen("127.0.0.1", 0)
        server = make_server(app)
        task = asyncio.create_task(server.serve(sockets=[sock]))
        while not (server.started and all(s.health.state.value == "ready" for s in app.gateway.fleet.states.values())):
            await asyncio.sleep(0.05)
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def router_before(urls: Sequence[str]) -> AsyncIterator[int]:
    """The port of a vllm-router before these replicas, with its policy for caches. It does not try again: it would wait
    in real time. Raises NotInstallable."""
    binary = routers.executable(routers.YARDSTICK)
    port = free_ports(2)
    command = routers.command(binary, routers.YARDSTICK, port, port + 1, [int(url.rsplit(":", 1)[1]) for url in urls])
    command[command.index("--policy") + 1] = "cache_aware"
    process = await asyncio.to_thread(
        subprocess.Popen, [*command, "--disable-retries"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        await asyncio.to_thread(_until_it_answers, port)
        yield port
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


def _until_it_answers(port: int) -> None:
    """Waits in real time, in which the replicas answer it."""
    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            sleep(0.1)
    raise TimeoutError("vllm-router does not answer")


async def one_run(scenario: Scenario, row: str, seed: int, agents: int, turns: int) -> Figures:
    """`row`: ours, hash, turns or router."""
    async with AsyncExitStack() as stack:
        sims = replicas(scenario)
        urls = [await stack.enter_async_context(sim.serve()) for sim in sims]
        ports = [int(url.rsplit(":", 1)[1]) for url in urls]
        if row == "ours":
            gate = await stack.enter_async_context(gateway_before(urls))
        elif row == "router":
            gate = await stack.enter_async_context(router_before(urls))
        count = iter(range(10**9))

        def choose(agent: Agent) -> Sequence[int]:
            if row in ("ours", "router"):
                return [gate]
            if row == "turns":
                at = next(count) % len(ports)
                return [*ports[at:], *ports[:at]]
            key = agent.name if scenario.ids else f"{agent.name} {next(count)}"
            return [ports[at] for at in by_hash(key, len(ports))]

        run = Run(scenario, seed, choose)
        began = asyncio.get_running_loop().time()
        death = asyncio.create_task(_death(sims[0], run.figures)) if scenario.dies else None
        await run.run(scenario.agents(seed, agents, turns))
        run.figures.wall = asyncio.get_running_loop().time() - began
        if death is not None:
            await death
        for sim in sims:
            _count(sim, run.figures)
        return run.figures


def _count(sim: SimVllm, figures: Figures) -> None:
    counters = sim.engine.counters
    figures.asked += counters.prefix_queries
    figures.computed += counters.prefix_queries - counters.prefix_hits


async def _death(sim: SimVllm, figures: Figures) -> None:
    await asyncio.sleep(DIES)
    _count(sim, figures)
    await sim.kill()
    await asyncio.sleep(RETURNS - DIES)
    await sim.revive()
