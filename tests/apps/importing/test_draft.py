"""Names of backends and aliases."""

from __future__ import annotations

from gateway.apps.importing.draft import alias_name, backend_name, shown_path, unique
from gateway.apps.importing.source_values import variable_name


def test_names() -> None:
    assert variable_name("qwen3.6-35b") == "QWEN3_6_35B"
    assert variable_name("8b") == "_8B"
    assert backend_name("meta/Llama 3.1:8b") == "meta-Llama-3.1:8b"
    assert backend_name("-!-") == "backend"
    assert alias_name("Qwen/Qwen3 (fast)") == "Qwen/Qwen3-fast"
    assert unique("a", ["a", "a-12"], "12", "12-8000") == "a-12-8000"
    assert unique("a", ["a"]) == "a-2"
    assert shown_path(("model_list", 0, "litellm_params", "rpm")) == "model_list[0].litellm_params.rpm"
