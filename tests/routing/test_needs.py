"""Needs against capabilities: every combination, against the rules as they are written down."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal, get_args

import pytest

from gateway.config.snapshot import Alias, Client, Tasks
from gateway.domain.capabilities import Capabilities, OnDemand
from gateway.domain.endpoints import COMPLETIONS, EMBEDDINGS
from gateway.domain.request import ToolChoice
from gateway.routing.needs import (
    ADAPTED,
    NO_ADAPTATION,
    NO_NEEDS,
    Needs,
    Resort,
    Switch,
    adapt,
    lacking,
    needs_of,
    rescued,
    resort_of,
)
from tests.routing.parts import alias, request

TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAMED = {"type": "function", "function": {"name": "f"}}
KNOWN = (True, False, None)
WAYS: tuple[OnDemand, ...] = get_args(OnDemand)

CHOICES: tuple[Literal["auto", "required", "named"] | None, ...] = (None, "auto", "required", "named")
THINKING: tuple[tuple[Switch | None, bool], ...] = (
    (None, False),
    ("on", False),
    ("off", False),
    ("on", True),
    ("off", True),
)
NEEDS = [
    Needs(tools, json_schema, images, audio, thinking, wish)
    for tools, json_schema, images, audio, (thinking, wish) in product(
        CHOICES, (False, True), (False, True), (False, True), THINKING
    )
]
# (thinks, silent) -> the short form
SHORT: dict[tuple[bool | None, bool | None], Any] = {
    (True, True): "optional",
    (True, False): "always",
    (None, False): "always",
    (False, True): "never",
    (False, None): "never",
}


def able(
    tools: bool | None,
    required: OnDemand,
    named: OnDemand,
    schema: bool | None,
    media: bool | None,
    thinks: bool | None,
    silent: bool | None,
) -> Capabilities:
    return Capabilities(
        tools=tools,
        required=required,
        named=named,
        json_schema=schema,
        images=media,
        audio=media,
        thinks=thinks,
        silent=silent,
        thinking=SHORT.get((thinks, silent)),
        mendable=tools is False,
    )


ABLE = [
    able(tools, required, named, schema, media, thinks, silent)
    for tools, (required, named), (schema, media), thinks, silent in product(
        KNOWN,
        [*((way, way) for way in WAYS), (WAYS[0], WAYS[-1]), (WAYS[-1], WAYS[1])],
        [(True, False), (False, True), (True, True), (False, False), (None, None)],
        KNOWN,
        KNOWN,
    )
]


def obstacles(needs: Needs, can: Capabilities) -> set[str]:
    """The table of docs/failover.md, row by row."""
    found = set()
    if needs.tools == "auto" and can.tools is False:
        found.add("tools")
    if needs.tools == "required" and can.required == "no":
        found.add("tool_choice")
    if needs.tools == "named" and can.named == "no":
        found.add("tool_choice")
    if needs.json_schema and can.json_schema is False:
        found.add("json_schema")
    if needs.images and can.images is False:
        found.add("images")
    if needs.audio and can.audio is False:
        found.add("audio")
    if needs.thinking == "on" and not needs.wish and can.thinks is False:
        found.add("thinking")
    if needs.thinking == "off" and not needs.wish and can.silent is False:
        found.add("thinking")
    return found


@pytest.mark.parametrize("needs", NEEDS, ids=lambda needs: "-".join(map(str, needs)))
def test_a_backend_is_used_adapted_or_skipped_by_the_table(needs: Needs) -> None:
    for can in ABLE:
        lacks = lacking(needs, can)
        assert set(lacks) == obstacles(needs, can)
        for mode in ("mend", "strip"):
            only_tools = set(lacks) == {"tools"} or (mode == "mend" and set(lacks) == {"tool_choice"})
            assert rescued(can, lacks, mode) == (only_tools and (mode == "strip" or can.tools is False))
        if lacks:
            continue
        way = {"required": can.required, "named": can.named}.get(needs.tools or "")
        done = adapt(needs, can)
        assert done.mode is None
        assert done.verify == (way in ("tried", "emulated"))
        assert done.emulate == (way == "emulated")
        unavailable = (needs.thinking, can.thinks) == ("on", False) or (needs.thinking, can.silent) == ("off", False)
        assert done.kinds == (("thinking_unavailable",) if unavailable else ())
        if needs.wish or needs.thinking is None or can.thinking in ("always", "never"):
            assert done.thinking is None
        else:
            assert done.thinking == needs.thinking


@pytest.mark.parametrize("tools", ["auto", "required", "named"])
def test_mending_what_is_demanded_is_checked(tools: Any) -> None:
    can = able(False, "no", "no", True, True, None, None)
    done = adapt(Needs(tools), can, "mend")
    assert (done.mode, done.verify, done.kinds) == ("mend", tools != "auto", ("tools_as_text",))
    assert adapt(Needs(tools), can, "strip").kinds == ("tools_stripped",)


def test_a_demand_is_never_stripped() -> None:
    can = able(False, "no", "no", True, True, None, None)
    for tools in CHOICES[2:]:
        needs = Needs(tools)
        assert not rescued(can, lacking(needs, can), "strip")


def test_every_word_is_one_of_the_documented_set() -> None:
    modes: tuple[Resort | None, ...] = (None, "mend", "strip")
    words = {word for needs in NEEDS for can in ABLE[::7] for mode in modes for word in adapt(needs, can, mode).kinds}
    assert words == set(ADAPTED) - {"max_tokens_clamped", "tool_call_forced", "server_fields_stripped"}


# -- from the request -------------------------------------------------------------------------------------------------


def needs(body: dict[str, Any], *, client: Client | None = None, **keys: Any) -> Needs:
    return needs_of(request(**body), alias("a", **keys), client)


def test_a_plain_request_needs_nothing_and_costs_nothing() -> None:
    plain = needs({"temperature": 0.1, "max_tokens": 5})
    assert plain is NO_NEEDS
    assert adapt(plain, Capabilities()) is NO_ADAPTATION


@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("required", "required"),
        ("none", None),
        (NAMED, "named"),
        ("nonsense", "auto"),
    ],
)
def test_tools_count_unless_the_client_forbids_calls(choice: Any, tools: ToolChoice | None) -> None:
    assert needs({"tools": TOOLS, "tool_choice": choice}).tools == tools
    assert needs({"tool_choice": choice}).tools is None, "without tools there is nothing to choose"


@pytest.mark.parametrize(("mode", "tools"), [("auto", "auto"), ("required", "required")])
def test_a_choice_among_allowed_tools_is_not_a_named_one(mode: str, tools: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": TOOLS}}
    assert needs({"tools": TOOLS, "tool_choice": choice}).tools == tools


def test_a_schema_is_a_need_and_json_alone_is_not() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    assert needs({"response_format": schema}).json_schema
    assert not needs({"response_format": {"type": "json_object"}}).json_schema


@pytest.mark.parametrize("said", ["on", "off", None])
@pytest.mark.parametrize("forced", ["on", "off", None])
@pytest.mark.parametrize("task", ["on", "off", None])
def test_the_clients_tasks_win_over_the_alias_and_that_over_the_request(said: Any, forced: Any, task: Any) -> None:
    body = {"messages": [{"role": "user", "content": "### Task:\nA title, please."}]}
    if said is not None:
        body["chat_template_kwargs"] = {"enable_thinking": said == "on"}  # type: ignore[assignment]  # any JSON
    client = Client("webui", tasks=Tasks("a", task))
    assert needs(body, client=client, thinking=forced).thinking == (task or forced or said)
    body["messages"] = [{"role": "user", "content": "hello"}]
    assert needs(body, client=client, thinking=forced).thinking == (forced or said)


def test_forced_thinking_is_no_wish() -> None:
    assert needs({"reasoning_effort": "high"}) == Needs(thinking="on", wish=True)
    assert needs({"reasoning_effort": "high"}, thinking="on") == Needs(thinking="on")
    assert needs({"reasoning_effort": "high"}, thinking="off") == Needs(thinking="off")


def test_only_what_is_rendered_by_a_chat_template_can_think() -> None:
    for asked in (request(COMPLETIONS, prompt="x", think=True), request(EMBEDDINGS, input="x", think=True)):
        assert needs_of(asked, alias("a", thinking="on")) is NO_NEEDS


def test_the_client_s_word_on_what_is_unsupported_wins() -> None:
    def resort(of_alias: Any, of_client: Any = None) -> Resort | None:
        client = Client("c", on_unsupported=of_client)
        return resort_of(Alias("a", (("b",),), on_unsupported=of_alias), client)

    assert [resort("refuse"), resort("mend"), resort("strip")] == [None, "mend", "strip"]
    assert [resort("mend", "refuse"), resort("refuse", "strip"), resort("strip", "mend")] == [None, "strip", "mend"]
    assert resort_of(Alias("a", (("b",),), on_unsupported="mend"), None) == "mend"
