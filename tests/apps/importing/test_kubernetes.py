"""Manifests: whatever stands in them."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.apps.importing.support_starts import notes_of, started
from tests.apps.importing.test_shell_statements import VALUES, is_loaded

OF_POD = ["volumes", "hostNetwork", "initContainers", "replicas", "template", "containers"]
OF_CONTAINER = ["command", "args", "env", "envFrom", "ports", "volumeMounts", "resources", "image", "odd"]
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"


def test_the_lines_of_a_later_document_are_those_of_the_file() -> None:
    text = "a: 1\n---\n" + POD + "spec:\n  containers:\n  - {image: busybox}\n"
    assert notes_of("kubernetes", text)[-1] == "left_out 8 Pod[1].containers[0]: busybox is no vLLM"


def test_a_port_of_the_machine() -> None:
    container = "{image: vllm/vllm-openai, args: [m], ports: [{containerPort: 8000, hostPort: 8003}]}"
    (backend,) = started("kubernetes", f"{POD}spec: {{containers: [{container}]}}").snapshot.backends.values()
    assert backend.url == "http://spark1:8003"


@settings(max_examples=100)
@given(
    st.dictionaries(st.sampled_from(OF_POD), VALUES, max_size=4),
    st.dictionaries(st.sampled_from(OF_CONTAINER), VALUES, max_size=5),
)
def test_whatever_stands_in_a_manifest(pod: dict[str, Any], container: dict[str, Any]) -> None:
    out = io.StringIO()
    spec = {"containers": [{"image": "vllm/vllm-openai:v1", "args": ["--model", "m"], **container}], **pod}
    YAML().dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}, out)
    is_loaded("kubernetes", out.getvalue())
