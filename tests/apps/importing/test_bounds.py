"""What an imported file may cost: whoever wrote it, the command ends soon, with an error that says what to do."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from gateway.apps.importing.import_command import STARTS
from gateway.config.problems import ConfigError

SERVE = "vllm serve org/m --port 8000\n"
TOO_LARGE = {
    "arrays of long texts": (
        "shell",
        "A=('" + "x" * 60000 + "')\n"
        "" + "".join(f"A{n}=(" + " ".join(f'"${{A}}{k}"' for k in range(60)) + ")\n" for n in range(150)) + SERVE,
    ),
    "an array that doubles": ("shell", "A=(a b c d)\n" + 'A+=("${A[@]}" "${A[@]}" "${A[@]}")\n' * 3000 + SERVE),
    "texts that are put in": (
        "shell",
        "A=" + "x" * 60000 + "\n" + "".join(f"B{n}=$A$A\n" for n in range(9000)) + SERVE,
    ),
    "a text that grows": ("shell", "A=" + "x" * 60000 + "\n" + "A+=y\n" * 60000 + SERVE),
    "a shell in a variable": ("shell", "A='" + "true;" * 10000 + "'\n" + 'bash -c "$A"\n' * 10000 + SERVE),
    "variables and launches": (
        "shell",
        "".join(f"export V{n}=x\n" for n in range(9000)) + SERVE * 9000,
    ),
    "variables and containers": (
        "shell",
        "".join(f"V{n}=x\n" for n in range(9000)) + "docker run -d vllm/vllm-openai:v1 --model m\n" * 5000,
    ),
    "functions that call themselves": ("shell", "f() { f; f; f; }\nf\n" + SERVE),
    "launches": ("shell", SERVE * 9000),
    "words": ("shell", "sudo " * 80000 + SERVE),
    "conditions": ("shell", "if true\n" * 60000 + SERVE),
    "notes": ("shell", "".join(f"cmd{n} a\n" for n in range(40000)) + SERVE),
    "secrets": ("shell", "".join(f"export API_KEY_{n}=sk-abcdefgh{n:08d}\n" for n in range(9000)) + SERVE),
    "masks": (
        "shell",
        "".join(f"export API_KEY_{n}=sk-abcdefgh{n:08d}\n" for n in range(190)) + f"vllm serve m {'a ' * 9000}\n" * 40,
    ),
    "size": ("shell", "# comment\n" * 120_000 + SERVE),
    "steps": (
        "systemd",
        "[Service]\n" + "".join(f"ExecStartPre=/x {n}\n" for n in range(20000)) + f"ExecStart={SERVE}",
    ),
    "keys": ("systemd", "[Service]\n" + "".join(f"K{n}=1\n" for n in range(40000)) + f"ExecStart={SERVE}"),
    "an environment": (
        "systemd",
        "[Service]\n" + "".join(f"Environment=V{n}=x\n" for n in range(9000)) + f"ExecStart={SERVE}" * 7000,
    ),
}
MOST_SECONDS, MOST_BYTES = 20.0, 100 * 1024 * 1024


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_file_that_costs_too_much_is_an_error_and_soon(name: str) -> None:
    kind, text = TOO_LARGE[name]
    begun = time.process_time()
    with pytest.raises(ConfigError, match=r"too large to be imported: .* - import a part of it"):
        STARTS[kind](text, "f", None)
    assert time.process_time() - begun < MOST_SECONDS


@pytest.mark.parametrize("name", ["arrays of long texts", "texts that are put in"])
def test_a_file_that_costs_too_much_takes_no_memory(name: str) -> None:
    kind, text = TOO_LARGE[name]
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            STARTS[kind](text, "f", None)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_a_unit_of_many_continued_lines_is_read_soon() -> None:
    text = "[Service]\nExecStart=vllm serve org/m \\\n" + "-x \\\n" * 100_000 + "--port 8000\n"
    begun = time.process_time()
    with pytest.raises(ConfigError, match="too large to be imported"):
        STARTS["systemd"](text, "f", None)
    assert time.process_time() - begun < MOST_SECONDS


def test_a_large_script_of_a_real_fleet_is_imported() -> None:
    exports = "".join(f"export VLLM_SETTING_{n}=value-{n}\n" for n in range(100))
    flags = " ".join(f"--served-model-name name-{n}" for n in range(30))
    starts = "".join(f"MODEL=org/model-{n}\nvllm serve $MODEL --port {8000 + n} {flags}\n" for n in range(100))
    draft = STARTS["shell"](exports + 'ARGS=(--a "b c" --d)\n' + starts, "start.sh", None)
    assert len(draft.backends) == 100
