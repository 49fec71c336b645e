"""k6: its agents call tools, execute them and go on, while their backend is killed under them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from loadtests import k6
from loadtests.table import complaints
from tests.clients.agents import PATIENCE
from tests.clients.stage import KEY, at_work, killable_demo
from tests.demo_process import Demo
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(PATIENCE)

BEFORE = 8  # answers of the backend before it is killed: every client has begun a conversation
SLOW = "60000"  # ms: how quick it is, is not asked here


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    with killable_demo(tmp_path, "--speedup", "8") as running:
        yield running


def answered(demo: Demo, backend: str) -> float:
    """Requests with a whole answer of this backend."""
    key = {"authorization": "Bearer operator-key"}
    lines = httpx.get(f"{demo.url}/metrics", headers=key, timeout=PATIENCE, trust_env=False).text.splitlines()
    wanted = [line for line in lines if line.startswith("gateway_attempts_total{") and f'backend="{backend}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in wanted)


def test_agents_go_on_when_their_backend_is_killed(demo: Demo, tmp_path: Path) -> None:
    try:
        k6.executable()
    except k6.LoadTestError as error:
        pytest.skip(str(error))
    told = {"BASE_URL": demo.url, "CONTROL_URL": demo.control, "API_KEY": KEY, "MODELS": "spark-qwen36"}
    told |= {"DURATION": "20s", "VUS": "4", "FIRST_TOKEN_P95_MS": SLOW}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(k6.run, "agents", told, tmp_path)
        wait_until(lambda: answered(demo, "qwen36") >= BEFORE and at_work(demo, "qwen36"), PATIENCE / 2)
        demo.steer("qwen36", "kill")
        result = running.result()
    assert result.value("answers_wrong", "passes") == 0, complaints(result)
    assert result.failed == [], complaints(result)  # every call is one of the tools, every answer is about its result
    assert (result.value("answers_from_fallback", "count") or 0) > BEFORE
    assert (result.value("answers_refused", "passes") or 0) == 0, complaints(result)
    assert (result.value("answers_interrupted", "passes") or 0) <= 4, "only streams that were under way"
