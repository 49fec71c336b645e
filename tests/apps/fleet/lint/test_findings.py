"""The lint: what works gives no error, and what went wrong gives its finding."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.apps.fleet.lint.catalog import catalog_of
from gateway.apps.fleet.lint.findings import findings, findings_of
from gateway.apps.fleet.lint.subject import ORDER, Finding
from gateway.config.load import load_text
from gateway.config.snapshot import Backend, Launch, Snapshot
from gateway.launch.command import parse
from gateway.launch.docker import read_docker_flags
from gateway.launch.flags import flag_names
from tests.apps.fleet.lint.linting import WORKING, field, launched, lint, of_backend, rules

# -- the field --------------------------------------------------------------------------------------------------------


def everything_that_works() -> Iterator[str]:
    for backend in WORKING.snapshot.backends.values():
        yield backend.name
        yield from (f"{backend.name} as {profile}" for profile in backend.profiles)


@pytest.mark.parametrize("name", list(everything_that_works()))
def test_a_launch_that_works_for_somebody_gives_no_error(name: str) -> None:
    backend, _, profile = name.partition(" as ")
    prefix = f"backends.{backend}.profiles.{profile}" if profile else f"backends.{backend}"
    snapshot = WORKING.snapshot
    found = findings(snapshot, catalog_of(snapshot), WORKING.lines)
    assert [one for one in found if one.path.startswith(prefix) and one.severity == "error"] == []


def test_every_launch_that_works_is_read_as_a_vllm_with_a_model() -> None:
    for backend in WORKING.snapshot.backends.values():
        assert backend.launch is not None
        assert backend.launch.parsed.model, backend.name


FIELD, REPORTED = field("field"), field("reported")


@pytest.mark.parametrize("name", FIELD)
def test_what_operators_run_is_no_error(name: str) -> None:
    launch = {key: value for key, value in FIELD[name].items() if key not in ("finds", "silent")}
    found = rules(of_backend(launch=launch))
    assert "error" not in found.values()
    assert not set(FIELD[name].get("silent", ())) & set(found)
    assert FIELD[name].get("finds", {}).items() <= found.items()


# model -> the tool parser of its own recipe; None: no row knows it
RECIPES = {
    "Qwen/Qwen3.8-27B": "qwen3_xml",
    "Qwen/Qwen3.8-Flash-Next": "qwen3_xml",
    "deepseek-ai/DeepSeek-V4.1-Flash": "deepseek_v41",
    "deepseek-ai/DeepSeek-V4-Flash-0731": "deepseek_v4",
    "Qwen/Qwen3.6-35B-A3B": "qwen3_xml",
    "Qwen/Qwen3.6-27B": "qwen3_xml",
    "Qwen/Qwen3.5-122B-A10B": "qwen3_coder",
    "Qwen/Qwen3.5-397B-A17B": "qwen3_coder",
    "Qwen/Qwen3-Coder-Next": "qwen3_coder",
    "zai-org/GLM-5.3-Flash": "glm47",
    "zai-org/GLM-5.2": "glm47",
    "zai-org/GLM-4.7-Flash": "glm47",
    "MiniMaxAI/MiniMax-M3": "minimax_m3",
    "MiniMaxAI/MiniMax-M2.7": "minimax_m2",
    "MiniMaxAI/MiniMax-H3": None,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": "qwen3_coder",
    "nvidia/NVIDIA-Nemotron-3-Ultra": "qwen3_coder",
    "nvidia/Nemotron-3.5-Lightning": "qwen3_coder",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": "qwen3_coder",
    "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4": "qwen3_coder",
    "openai/gpt-oss-120b": "openai",
    "google/gemma-4-26B-A4B-it": "gemma4",
    "google/gemma-4-31B-it": "gemma4",
    "google/gemma-4-12B-it": "gemma4",
    "mistralai/Mistral-Small-4-119B-2603": "mistral",
    "mistralai/Mistral-Medium-3.5": "mistral",
    "poolside/Laguna-S-2.1": "poolside_v1",
    "XiaomiMiMo/MiMo-V2.5": "mimo",
    "stepfun-ai/Step-3.5": "step3p5",
    "moonshotai/Kimi-K3": "kimi_k3",
    "thinkingmachines/Inkling-Small": "inkling",
    "CohereLabs/Command-A-plus": "cohere_command4",
    "tencent/Hy-4": "hy_v4",
    "inclusionAI/Ling-3": "ling3",
    "meta/Muse-Glimmer-30B": "muse_glimmer",
    "acme/Ornith": None,
}


@pytest.mark.parametrize("model", RECIPES)
def test_the_advice_is_what_the_models_own_recipe_has(model: str) -> None:
    parser, found = RECIPES[model], launched(f"vllm serve {model}")
    advice = next(one.fix for one in found if one.rule == "auto-tool-choice")
    assert advice == f"--enable-auto-tool-choice --tool-call-parser {parser or 'NAME'}"
    assert ("model-unknown" in rules(found)) is (parser is None)
    with_it = rules(launched(f"vllm serve {model} {advice}")) if parser else {}
    assert "parser-family" not in with_it
    assert "error" not in with_it.values()


@pytest.mark.parametrize("image", ["vllm/vllm-openai:v0.33.0", "ghcr.io/me/vllm-fork:1"])
def test_launches_whose_figures_were_reported_have_no_error(image: str) -> None:
    for name, case in REPORTED.items():
        nodes = ["spark1", "spark2"][: case.get("nodes", 1)]
        flags = dict(case["flags"]) | ({"tensor-parallel-size": 2} if len(nodes) == 2 else {})
        words = [
            word
            for flag, value in flags.items()
            for word in (f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value))
            if word != "True"
        ]
        launch = {"image": image, "command": shlex.join([case["model"], *words])}
        assert "error" not in rules(of_backend(node=nodes, launch=launch)).values(), name


# -- what is not said -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "command"),
    [
        ("mamba-block", "vllm serve Qwen/Qwen3.6-27B --enable-prefix-caching --max-num-batched-tokens 2128"),
        ("mamba-block", "vllm serve Qwen/Qwen3.6-27B --enable-prefix-caching --max-num-batched-tokens 8k"),
        ("mamba-block", "vllm serve Qwen/Qwen3.6-27B --no-enable-prefix-caching"),
        ("mamba-block", "vllm serve Qwen/Qwen3.6-27B"),
        ("quantization", "vllm serve google/gemma-4-26B-A4B-it --quantization fp8"),
        ("quantization", "vllm serve RedHatAI/Qwen3.6-35B-A3B-NVFP4"),
        ("moe-backend", "vllm serve nvidia/Gemma-4-31B-IT-NVFP4 --quantization modelopt"),
        ("parser-family", "vllm serve somebody/unheard-of --tool-call-parser hermes --enable-auto-tool-choice"),
        ("auto-tool-choice", "vllm serve Qwen/Qwen3-Embedding-8B"),
        ("dev-mode", "VLLM_SERVER_DEV_MODE=1 vllm serve m --host 127.0.0.1"),
        ("reasoning-parser", "vllm serve Qwen/Qwen3-8B"),
    ],
)
def test_what_is_fine_is_not_told(rule: str, command: str) -> None:
    assert rule not in rules(launched(command))


def test_a_fact_of_an_older_version_does_not_hold_for_a_newer_one() -> None:
    caching = "RedHatAI/Qwen3.6-35B-A3B-NVFP4 --enable-prefix-caching"
    assert rules(launched(caching, image="vllm/vllm-openai:v0.31.0"))["mamba-block"] == "error"
    assert "mamba-block" not in rules(launched(caching, image="vllm/vllm-openai:v0.32.0"))
    spread = "nvidia/Gemma-4-26B-A4B-NVFP4 -tp 2 --nnodes 2 --master-addr 10.0.0.1"
    for image, severity in (("v0.23.0", "error"), ("nightly", "warning"), ("v0.33.0", "warning")):
        launch = {"command": spread, "image": f"vllm/vllm-openai:{image}"}
        assert rules(of_backend(node=["spark1", "spark2"], launch=launch))["parallel-size"] == severity


@pytest.mark.parametrize(
    "command",
    [
        "Qwen/Qwen3.6-27B --tool-call-parser hermes --enable-auto-tool-choice",
        "Qwen/Qwen3.6-27B --tool-call-parser qwen3_xml",
        "RedHatAI/Qwen3.5-122B-A10B-NVFP4 --quantization modelopt",
        "Qwen/Qwen3.6-27B --enable-prefix-caching",
        "m --kv-cache-dtype turboquant35",
        "m --max-model-lem 4096",
        "Qwen/Qwen3.6-27B --max-model-len 2000000",
        "serve m --port 8000",
        "m extra words",
    ],
)
def test_what_is_an_error_in_a_released_build_is_none_in_another(command: str) -> None:
    released, other = (launched(command, image=image) for image in ("vllm/vllm-openai:v0.23.0", "ghcr.io/me/fork:1"))
    assert "error" in rules(released).values()
    assert "error" not in rules(other).values()
    assert any(one.message.startswith("if ghcr.io/me/fork:1 is vLLM as it is released: ") for one in other) or (
        {one.rule for one in released if one.severity == "error"} <= {one.rule for one in other}
    )


def test_what_is_wrong_with_the_file_is_wrong_for_every_image() -> None:
    found = rules(launched("m --max-num-seqs many -tp 3", image="ghcr.io/me/fork:1", docker="--gpus 0 --ipc=host"))
    assert {rule for rule, severity in found.items() if severity == "error"} == {
        "docker-gpus",
        "flag-value",
        "parallel-size",
    }


def test_words_that_a_shell_has_yet_to_expand_are_not_judged() -> None:
    command = "vllm serve m --port 8000 $EXTRA ${REVISION:+--revision 1}"
    assert "command-words" not in rules(launched(command, image="vllm/vllm-openai:v0.33.0"))


def test_a_reference_is_not_judged() -> None:
    found = launched("vllm serve ${MODEL} --tool-call-parser ${PARSER} --enable-auto-tool-choice --max-model-len ${N}")
    assert [one for one in found if one.severity == "error"] == []


def test_a_command_that_starts_no_vllm_is_left_alone() -> None:
    assert of_backend(url="http://192.168.1.11:1", launch={"command": "python serve.py --model x"}) == []


WORDS = st.one_of(
    st.sampled_from([f"--{name}" for name in flag_names()]),
    st.sampled_from(["8k", "-1", "2", "true", "{}", '{"method":"mtp","num_speculative_tokens":true}', "fp8", "[1]"]),
    st.sampled_from(['{"video":{"count":1}}', '{"rope":1}', '{"method":3,"model":[]}', "${X}", "FLASHINFER", "ray"]),
    st.sampled_from(["Qwen3.6-35B-A3B-NVFP4", "nvidia/Gemma-4-26B-A4B-NVFP4", "DeepSeek-V4-Flash", "x-coder-gemma4"]),
    st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(WORDS, max_size=12),
    st.sampled_from([None, "vllm/vllm-openai:nightly", "nvcr.io/nvidia/vllm:26.04-py3", "x", "a/b@sha256:1"]),
    st.lists(WORDS, max_size=4).map(" ".join),
)
def test_whatever_is_written_it_is_judged_without_a_crash(words: list[str], image: str | None, docker: str) -> None:
    text = shlex.join(["vllm", "serve", *words])
    container = read_docker_flags(docker)
    parsed = parse(text, image=image, entrypoint=container.entrypoint)
    launch = Launch(image=image, command=text, docker=docker, parsed=parsed, container=container)
    backend = Backend("b", url="http://h:1", launch=launch, nodes=("n",))
    snapshot = Snapshot({"b": backend}, {})
    assert all(one.message for one in findings(snapshot, catalog_of(snapshot)))


def test_a_cloud_is_left_alone() -> None:
    cloud = {"url": "https://api.example.com", "cloud": True, "model": "qwen3.6", "tool_parser": "hermes"}
    assert lint({"backends": {"c": cloud}}) == []


# -- profiles, places, order ------------------------------------------------------------------------------------------


def test_what_a_profile_says_is_no_repetition_of_another_backend_whose_name_begins_alike() -> None:
    serve = "vllm serve Qwen/Qwen3.6-27B --port"
    file = {
        "q.5": {"node": "spark1", "launch": {"command": f"{serve} 1 --enforce-eager"}},
        "q.6": {
            "node": "spark2",
            "launch": {"command": f"{serve} 2"},
            "profiles": {"p": {"enforce-eager": True}},
        },
    }
    found = [one.path for one in lint({"backends": file}) if one.rule == "enforce-eager"]
    assert found == ["backends.q.5.launch.command", "backends.q.6.profiles.p"]


def test_a_profile_is_looked_at_and_repeats_nothing_of_its_command() -> None:
    line = {"command": "vllm serve Qwen/Qwen3.6-27B --tool-call-parser hermes --enable-auto-tool-choice"}
    found = of_backend(launch=line, profiles={"long": {"max-model-len": 1000000}})
    assert [(one.rule, one.path) for one in found if one.severity == "error"] == [
        ("parser-family", "backends.b.launch.command"),
        ("long-window", "backends.b.profiles.long"),
    ]


def test_a_finding_has_the_line_of_its_place() -> None:
    text = """\
backends:
  b:
    url: http://192.168.1.11:8001
    model: Qwen/Qwen3.6-27B
    tool_parser: hermes
"""
    loaded = load_text(text, environ={})
    (found,) = findings(loaded.snapshot, catalog_of(loaded.snapshot), loaded.lines)
    assert (found.line, found.path, found.severity) == (5, "backends.b.tool_parser", "error")
    assert findings(loaded.snapshot, catalog_of(loaded.snapshot))[0].line is None


def test_errors_come_first() -> None:
    found = findings(WORKING.snapshot, catalog_of(WORKING.snapshot), WORKING.lines)
    assert [one.severity for one in found] == sorted((one.severity for one in found), key=ORDER.index)


def test_a_finding_as_text_has_no_control_characters() -> None:
    found = Finding("error", "why\n", "fix\x07", "", ("backends", "\x1b[31m"), "x", 3)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", str(found))


ACCEPTED = """\
backends:
  a:                # fine: image-tag, volumes (measured)
    url: http://10.0.0.1:8001
    launch: {image: "vllm/vllm-openai:nightly", command: "vllm serve acme/a --port 8001 --gpu-memory-utilization 25"}
  b:
    url: http://10.0.0.2:8001
    launch: {image: "vllm/vllm-openai:nightly", command: "vllm serve acme/a --port 8001"}
"""


def test_a_comment_accepts_rules_of_the_backend_in_which_it_stands() -> None:
    found = findings_of(load_text(ACCEPTED, environ={}))
    assert {one.path.split(".")[1] for one in found if one.rule == "image-tag"} == {"b"}
    below = ACCEPTED.replace("  b:\n", "  b:\n    # fine: flag-range\n    # fine: image-tag - as of today\n")
    assert not [one for one in findings_of(load_text(below, environ={})) if one.rule == "image-tag"]
    # a comment is about its own backend, and names rules, not reasons
    reason = ACCEPTED.replace("image-tag, volumes (measured)", "volumes (image-tag)")
    assert len([one for one in findings_of(load_text(reason, environ={})) if one.rule == "image-tag"]) == 2


def test_an_error_is_not_accepted_by_a_comment() -> None:
    (error,) = (one for one in findings_of(load_text(ACCEPTED, environ={})) if one.severity == "error")
    again = ACCEPTED.replace("fine: ", f"fine: {error.rule}, ")
    assert error in findings_of(load_text(again, environ={}))
