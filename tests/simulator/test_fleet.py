"""The fleet of a routes.yaml, simulated: one server per thing that runs, found under its backend's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.config.snapshot import Backend, Launch, Secret, Snapshot
from gateway.launch.command import ServeCommand
from simulator import SimOllama, SimOther, SimVllm
from simulator.fleet import family_of, start_fleet
from tests.simulator.wire import ask, chat

BACKENDS = (
    Backend("qwen36", url="http://192.168.1.11:8001", model="RedHatAI/Qwen3.6-35B-A3B-NVFP4", slots=4, context=131072,
            tool_parser="qwen3_coder", reasoning_parser="qwen3"),
    Backend("gemma4", url="http://192.168.1.12:8001", context=65536, tool_parser="hermes", reasoning_parser="none"),
    Backend("notools", url="http://192.168.1.12:8002", tool_parser="none"),
    Backend("ds4", url="http://192.168.1.11:8000", run="on_demand", slots=8),
    Backend("q80", url="http://192.168.1.11:8001", model="Qwen3-Next-80B-A3B-Instruct-FP8", run="on_demand"),
    Backend("qwen8b", engine="ollama", url="http://192.168.1.11:11434", model="qwen3:8b"),
    Backend("qwen32", engine="ollama", url="http://192.168.1.11:11434", model="qwen3:32b"),
    Backend("mac", engine="openai", url="http://192.168.1.10:8009", model="mac-model", api_key=Secret("k")),
    Backend("fireworks", engine="openai", url="https://api.fireworks.ai/inference", cloud=True),
    Backend("parakeet", engine="http", url="http://192.168.1.11:8765", serves=("transcriptions",)),
)  # fmt: skip
SNAPSHOT = Snapshot({b.name: b for b in BACKENDS}, {})


async def test_every_backend_but_cloud_ones_is_simulated() -> None:
    async with await start_fleet(SNAPSHOT, speedup=100.0) as fleet:
        assert sorted(fleet) == sorted(b.name for b in BACKENDS if not b.cloud)
        assert fleet["qwen8b"] == fleet["qwen32"], "one Ollama"
        assert fleet["qwen36"] != fleet["q80"], "modes that share a port are not one server"
        card = (await ask(fleet["qwen36"], "/v1/models")).json["data"][0]
        assert (card["id"], card["max_model_len"]) == ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", 131072)
        names = [m["name"] for m in (await ask(fleet["qwen8b"], "/api/tags")).json["models"]]
        assert names == ["qwen3:8b", "qwen3:32b"]
        assert (await ask(fleet["parakeet"], "/health")).status == 200
        assert (await ask(fleet["parakeet"], "/v1/audio/transcriptions", b"wav")).json["text"]
        assert (await ask(fleet["mac"], "/v1/models")).status == 401
        assert (await ask(fleet["mac"], "/v1/models", headers={"authorization": "Bearer k"})).status == 200


@pytest.mark.parametrize(
    ("kind", "keys"), [("mlx", {"engine": "mlx"}), ("transformers", {"engine": "openai", "server": "transformers"})]
)
async def test_another_server_is_simulated_with_its_habits(kind: str, keys: dict[str, Any]) -> None:
    backend = Backend("m", url="http://192.168.1.12:8080", slots=2, **keys)
    async with await start_fleet(Snapshot({"m": backend}, {}), speedup=100.0) as fleet:
        sim = fleet.sims["m"]
        assert isinstance(sim, SimOther)
        assert (sim.kind, sim.started_with, sim.engine.slots) == (kind, "m", 2)


async def test_a_launch_block_says_what_the_metrics_of_its_simulated_engine_show() -> None:
    drafts = {"method": "mtp", "num_speculative_tokens": 2}
    flags = {"gpu-memory-utilization": 0.55, "enable-prefix-caching": False, "speculative-config": drafts}
    launched = replace(BACKENDS[0], launch=Launch(parsed=ServeCommand(flags=flags)))
    async with await start_fleet(Snapshot({"qwen36": launched}, {}), speedup=100.0) as fleet:
        page = (await ask(fleet["qwen36"], "/metrics")).body
    assert b'enable_prefix_caching="False",' in page
    assert b'gpu_memory_utilization="0.55",' in page
    assert page.count(b"vllm:spec_decode_num_accepted_tokens_per_pos_total{") == 2


async def test_what_runs_on_demand_refuses_until_it_is_started() -> None:
    async with await start_fleet(SNAPSHOT, speedup=1000.0) as fleet:
        with pytest.raises(ConnectionRefusedError):
            await ask(fleet["ds4"], "/health")
        await ask(fleet.control_url, "/_sim/ds4/start", b"", "POST")
        sim = fleet.sims["ds4"]
        await sim.wait_for(lambda: sim.state()["listening"])
        assert (await ask(fleet["ds4"], "/health")).status == 200
        await ask(fleet.control_url, "/_sim/ds4/stop", b"", "POST")
        with pytest.raises(ConnectionRefusedError):
            await ask(fleet["ds4"], "/health")


async def test_a_simulated_backend_has_the_parsers_and_slots_of_its_definition() -> None:
    tools = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}]
    async with await start_fleet(SNAPSHOT, speedup=100.0) as fleet:
        qwen, gemma, ollama = fleet.sims["qwen36"], fleet.sims["gemma4"], fleet.sims["qwen8b"]
        assert isinstance(qwen, SimVllm)
        assert isinstance(ollama, SimOllama)
        assert (qwen.engine.slots, qwen.tool_parser, qwen.reasoning_parser) == (4, "qwen3_coder", "qwen3")
        assert qwen.engine.prefill == 6200
        for name in ("qwen36", "gemma4"):
            reply = await ask(fleet[name], "/v1/chat/completions", chat("call ping", tools=tools))
            message = reply.json["choices"][0]["message"]
            assert message["tool_calls"][0]["function"] == {"name": "ping", "arguments": "{}"}
            assert bool(message["reasoning"]) == (name == "qwen36")
        assert gemma.aborted == 0
        assert (await ask(fleet["notools"], "/v1/chat/completions", chat("ping", tools=tools))).status == 400


@pytest.mark.parametrize(
    ("name", "tools", "thinking"),
    [
        ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", "qwen3_coder", None),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking-FP8", "hermes", "always"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "hermes", "never"),
        ("google/gemma-4-26B-A4B-it", "gemma4", None),
        ("deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4", None),
        ("something/else", None, None),
    ],
)
def test_a_family_is_known_by_the_models_name(name: str, tools: str | None, thinking: str | None) -> None:
    family = family_of(name)
    assert (family.tools, family.thinking) == (tools, thinking)
