"""A backend's keys follow from its launch command; what is stated twice must agree; modes and profiles are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load, load_text
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Backend, Snapshot

TWO_NODES = "nodes: {spark1: {address: 192.168.1.11}, spark2: {address: 192.168.1.12}, bare: {memory: 1GiB}}\n"
FLAGS = (
    "--port 8001 --max-model-len 131072 --max-num-seqs 4 --enable-auto-tool-choice "
    "--tool-call-parser qwen3_xml --reasoning-parser qwen3"
)


def snapshot(text: str) -> Snapshot:
    return load_text(TWO_NODES + text, environ={}).snapshot


def backend(command: str, more: str = "", launch: str = "") -> Backend:
    text = f"backends:\n  a:\n    node: spark1\n{more}    launch:\n{launch}      command: >-\n        {command}\n"
    return snapshot(text).backends["a"]


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        snapshot(text)
    return [str(problem) for problem in caught.value.problems]


def test_every_key_follows_from_the_command() -> None:
    a = backend(f"vllm serve org/model {FLAGS} --limit-mm-per-prompt '{{\"image\": 2}}'")
    assert (a.url, a.model, a.context, a.slots) == ("http://192.168.1.11:8001", "org/model", 131072, 4)
    assert (a.tool_parser, a.auto_tools, a.reasoning_parser, a.vision) == ("qwen3_xml", True, "qwen3", True)
    assert a.slots_assumed is False


def test_what_the_command_leaves_out_is_known_too() -> None:
    a = backend("vllm serve org/model")
    assert (a.url, a.context, a.slots, a.slots_assumed) == ("http://192.168.1.11:8000", None, 8, True)
    assert (a.tool_parser, a.auto_tools, a.reasoning_parser, a.vision) == ("none", False, "none", None)


@pytest.mark.parametrize(
    ("flags", "vision"),
    [
        ("--language-model-only", False),
        ("--limit-mm-per-prompt '{\"image\": 0}'", False),
        ("--limit-mm-per-prompt.image 1", True),
        ('--limit-mm-per-prompt \'{"image": {"count": 1}}\'', True),
        ("--limit-mm-per-prompt '{\"video\": 1}'", None),
    ],
)
def test_whether_it_takes_images_is_read_off_its_flags(flags: str, vision: bool | None) -> None:
    assert backend(f"vllm serve m {flags}").vision is vision


def test_the_first_node_of_a_list_is_the_one_that_is_asked() -> None:
    text = "backends: {a: {node: [spark2, spark1], launch: {command: vllm serve m}}}\n"
    assert snapshot(text).backends["a"].url == "http://192.168.1.12:8000"


@pytest.mark.parametrize(
    ("docker", "port"),
    [("-p 9001:8001", 9001), ("--publish=9001:8001", 9001), ("-p 0.0.0.0:9001:8001/tcp", 9001), ("-p9001:8001", 9001),
     ("-p 9001:8000", 8001), ("--ipc=host", 8001), ("-dp9001:8001", 9001),
     ("--network host -p 9001:8001", 8001), ("--net=host -p 9001:8001", 8001)],
)  # fmt: skip
def test_a_published_port_is_the_one_to_ask(docker: str, port: int) -> None:
    found = backend("m --port 8001", launch=f"      image: vllm/vllm-openai:x\n      docker: '{docker}'\n")
    assert found.url == f"http://192.168.1.11:{port}"


def test_under_an_entrypoint_of_docker_the_keys_follow_from_what_it_starts() -> None:
    image = "      image: vllm/vllm-openai:x\n      docker: --entrypoint /bin/bash\n"
    found = backend(
        "-c \"pip install 'vllm[audio]' && vllm serve org/m --port 8006 --max-model-len 4096\"", launch=image
    )
    assert (found.url, found.model, found.context) == ("http://192.168.1.11:8006", "org/m", 4096)


def test_a_reference_gives_no_key_and_stays_a_reference() -> None:
    a = backend(
        "vllm serve ${MODEL} --max-model-len ${WINDOW}",
        launch='      env: {HF_TOKEN: "${HF_TOKEN}"}\n',
    )
    assert (a.model, a.context) == (None, None)
    assert a.launch is not None
    assert a.launch.env == {"HF_TOKEN": "${HF_TOKEN}"}


def test_the_same_said_twice_is_no_mistake() -> None:
    stated = (
        "    url: http://192.168.1.11:8001/v1\n    model: b\n    context: 131072\n    slots: 4\n    auto_tools: true\n"
    )
    assert backend(f"vllm serve m {FLAGS} --served-model-name a b", more=stated).context == 131072


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ("context: 65536", "context: 65536 here, but --max-model-len in launch.command (routes.yaml:7) says 131072"),
        ("slots: 8", "slots: 8 here, but --max-num-seqs in launch.command (routes.yaml:7) says 4"),
        ("tool_parser: hermes", "tool_parser: hermes here, but --tool-call-parser in launch.command"),
        ("reasoning_parser: none", "reasoning_parser: none here, but --reasoning-parser in launch.command"),
        ("auto_tools: false", "auto_tools: false here, but --enable-auto-tool-choice in launch.command"),
        ("model: other", "model: other here, but the model in launch.command"),
        ('url: "http://192.168.1.11:8002"', "url: http://192.168.1.11:8002 here, but --port in launch.command"),
    ],
)
def test_what_is_stated_twice_and_differs_is_an_error_with_both_lines(stated: str, says: str) -> None:
    text = f"backends:\n  a:\n    node: spark1\n    {stated}\n    launch:\n      command: vllm serve m {FLAGS}\n"
    (mistake,) = mistakes(text)
    assert mistake.startswith("routes.yaml:5  backends.a.")
    assert says in mistake


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("backends: {a: {node: bare, launch: {command: vllm serve m}}}", "write nodes.bare.address, or url"),
        ("backends: {a: {node: spark1, launch: {image: x}}}", "backends.a.launch: 'command' is missing"),
        ("backends: {a: {engine: ollama, url: 'http://x:1', model: m, launch: {command: vllm serve m}}}",
         "backends.a.engine: ollama here, but launch.command starts vLLM"),
        ("backends: {a: {url: 'http://x:1', profiles: {p: {port: 1}}}}", "profiles change a launch command"),
        ('backends: {a: {node: spark1, launch: {command: vllm serve m}, profiles: {"p\\nrm -rf /": {port: 1}}}}',
         "a name that cannot be used - write 1 to 128 printable characters"),
        ('backends: {a: {node: spark1, launch: {command: vllm serve m}, profiles: {"p\\u2028": {port: 1}}}}',
         "a name that cannot be used"),
        ("backends: {a: {url: 'http://x:1', launch: {resident: 1GiB}, profiles: {p: {port: 1}}}}",
         "profiles change a launch command"),
        ("backends: {a: {node: spark1, launch: {command: vllm serve m}, profiles: {p: {max-num-seqs: }}}}",
         "backends.a.profiles.p.max-num-seqs: has no value - write one, or none to leave the flag out"),
        ("backends: {a: {node: spark1, launch: {command: vllm serve m}, profiles: {p: {served-model-name: [a, ~]}}}}",
         "backends.a.profiles.p.served-model-name: has no value"),
        ("backends: {a: {node: spark1, launch: {command: vllm serve m}, profiles: {p: {max-num-seqs: many}}}}",
         "backends.a.profiles.p: --max-num-seqs: 'many' is not a whole number"),
        ("backends: {a: {url: 'http://x:1'}}\nmodes: {daily: [b]}", "modes.daily: unknown backend 'b'"),
        ("backends: {a: {url: 'http://x:1'}}\nmodes: {daily: a}", "modes.daily: is not a list of backends"),
        ("backends: {a: {url: 'http://x:1'}}\nmodes: {d: {backends: [a], profile: {}}}", "did you mean 'profiles'?"),
        ("backends: {a: {url: 'http://x:1'}}\nmodes: {d: {backends: [a], profiles: {a: p}}}", "'a' has no profile 'p'"),
        ("backends: {a: {url: 'http://x:1'}}\nmodes: {d: {backends: [], profiles: {a: p}}}", "'a' is not in this mode"),
        ("backends: {a: {engine: openai, model: m, url: 'https://x.example.com', cloud: true}}\nmodes: {d: [a]}",
         "'a' is a cloud backend"),
        ("backends: {a: {url: 'http://x:1', max_num_batched_tokens: 8192}}",
         "a launch flag of vLLM: write --max-num-batched-tokens in launch.command"),
    ],
)  # fmt: skip
def test_mistakes_of_the_fleets_keys(text: str, says: str) -> None:
    assert any(says in mistake for mistake in mistakes(text + "\n")), mistakes(text + "\n")


def of_profile(flags: str) -> str:
    (mistake,) = mistakes(
        f"backends: {{a: {{node: spark1, launch: {{command: vllm serve m}}, profiles: {{p: {flags}}}}}}}"
    )
    return mistake


def test_what_to_do_about_a_profile_is_said_as_it_is() -> None:
    assert of_profile("{max-num-seqs: '4,0'}").endswith("write --max-num-seqs 40")
    assert of_profile("{max-num-seqs: '4 stray'}").endswith("is not a whole number")
    assert of_profile("{gpu-memory-utilization: .nan}").endswith("'.nan' is not a number")
    assert "write leave" not in of_profile("{enable-prefix-caching: stray}")


def test_a_secret_in_a_profile_is_not_in_the_message() -> None:
    mistake = of_profile("{api-kye: sk-live-123456789}")
    assert "did you mean --api-key?" in mistake
    assert "sk-live" not in mistake


def test_an_edit_of_the_command_is_another_backend_and_the_same_server() -> None:
    one, other = backend("vllm serve m --max-num-seqs 4"), backend("vllm serve m --max-num-seqs 5")
    assert one != other
    assert (one.identity, hash(one)) == (other.identity, hash(other))


def test_a_cloud_is_never_started() -> None:
    text = "backends: {a: {url: 'https://api.example.com', cloud: true, engine: openai, model: m, stop: x}}"
    warnings = [str(warning) for warning in load_text(text, environ={}).warnings]
    assert any("backends.a.stop: a cloud backend is never started or stopped" in one for one in warnings)


@pytest.mark.parametrize(("mode", "keys", "warned"), [(0o646, ", stop: x", 1), (0o644, ", stop: x", 0), (0o646, "", 0)])
def test_a_file_of_commands_that_everybody_may_write(tmp_path: Path, mode: int, keys: str, warned: int) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(f"backends: {{a: {{url: 'http://127.0.0.1:1'{keys}}}}}")
    file.chmod(mode)
    found = [warning for warning in load(file, {}).warnings if "everybody on this machine may write" in str(warning)]
    assert len(found) == warned
