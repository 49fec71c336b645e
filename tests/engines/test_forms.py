"""A chat in the forms that a server reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.domain.forms import USUAL_FORMS, Forms, learned_forms
from gateway.engines.forms import put_in_form, reminder

USER = {"role": "user", "content": "How many?"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def formed(forms: Forms, **body: Any) -> dict[str, Any]:
    fields = {name: Raw(json.dumps(value).encode()) for name, value in body.items()}
    put_in_form(fields, forms)
    return {name: json.loads(bytes(value)) for name, value in fields.items()}


def messages(forms: Forms, *given: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = formed(forms, messages=list(given))["messages"]
    return sent


def test_nothing_is_read_where_nothing_is_to_be_changed() -> None:
    raw = Raw(b'[ {"role" : "user", "content": "How many?"}]')
    fields = {"messages": raw, "reasoning_effort": Raw(b'"high"'), "max_tokens": Raw(b"5")}
    put_in_form(fields, USUAL_FORMS)
    assert fields["messages"] is raw
    assert list(fields) == ["messages", "reasoning_effort", "max_tokens"]


def test_a_developer_is_the_system() -> None:
    developer = {"content": "Be brief.", "role": "developer"}
    assert messages(USUAL_FORMS, developer, USER) == [{"role": "system", "content": "Be brief."}, USER]
    assert messages(Forms(developer=True), developer, USER) == [developer, USER]


def test_a_developer_beside_the_system_is_one_message_with_it() -> None:
    system, developer = {"role": "system", "content": "One."}, {"role": "developer", "content": "Two."}
    for given in ((system, developer), (developer, system)):
        (first, second) = messages(USUAL_FORMS, *given, USER)
        assert sorted(first["content"].split("\n\n")) == ["One.", "Two."]
        assert second == USER


def test_a_developer_in_the_middle_is_a_reminder() -> None:
    late = {"role": "developer", "content": [{"type": "text", "text": "Hurry."}]}
    (_, reminded, _) = messages(USUAL_FORMS, USER, late, {"role": "assistant", "content": "Yes."})
    assert reminded == {"role": "user", "content": [{"type": "text", "text": reminder("Hurry.")}]}


def test_roles_alternate_where_they_have_to() -> None:
    system, late = {"role": "system", "content": "One."}, {"role": "system", "content": "Two."}
    sent = messages(Forms(turns=True), system, USER, late, USER, {"role": "assistant", "content": "Yes."})
    assert [message["role"] for message in sent] == ["system", "user", "assistant"]
    assert sent[1]["content"] == f"How many?\n\n{reminder('Two.')}\n\nHow many?"


def test_calls_and_results_are_not_joined() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
    results = [{"role": "tool", "tool_call_id": id_, "content": id_} for id_ in "ab"]
    assert messages(Forms(turns=True), USER, call, *results) == [USER, call, *results]


def test_the_system_is_the_users_where_there_is_no_such_role() -> None:
    assert messages(Forms(system=False), {"role": "system", "content": "One."}, USER) == [
        {"role": "user", "content": "One.\n\nHow many?"}
    ]


def test_pictures_of_results_are_the_users() -> None:
    results = [
        {"role": "tool", "tool_call_id": id_, "content": [{"type": "text", "text": id_}, PICTURE]} for id_ in "ab"
    ]
    sent = messages(Forms(text_results=True), *results, USER)
    assert [message["content"] for message in sent] == ["a", "b", [PICTURE, PICTURE], "How many?"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_have_the_name_that_is_read(name: Any) -> None:
    for given in ("reasoning", "reasoning_content"):
        (sent,) = messages(Forms(thoughts=name), {"role": "assistant", "content": "Yes.", given: "Hm."})
        assert sent == {"role": "assistant", "content": "Yes.", name: "Hm."}
    (sent,) = messages(Forms(thoughts="none"), {"role": "assistant", "content": "Yes.", "reasoning": "Hm."})
    assert sent == {"role": "assistant", "content": "Yes."}


def test_an_id_that_is_taken_stays() -> None:
    for ids, given in (("mistral", "abcDEF123"), ("safe", "toolu_1-a"), ("short", "call_1")):
        forms = learned_forms(USUAL_FORMS, [f"form:ids={ids}"])
        assert messages(forms, {"role": "tool", "tool_call_id": given})[0]["tool_call_id"] == given


def test_the_limit_has_the_name_that_is_read() -> None:
    assert formed(Forms(limit="max_tokens"), max_completion_tokens=5) == {"max_tokens": 5}
    assert formed(Forms(limit="max_completion_tokens"), max_tokens=5) == {"max_completion_tokens": 5}
    assert formed(Forms(limit="both"), max_completion_tokens=5) == {"max_completion_tokens": 5, "max_tokens": 5}
    assert formed(Forms(limit="max_tokens"), max_completion_tokens=None) == {"max_completion_tokens": None}


def test_an_effort_is_one_that_is_known() -> None:
    assert formed(Forms(efforts=("low", "xhigh")), reasoning_effort="high") == {"reasoning_effort": "xhigh"}
    assert formed(Forms(efforts=()), reasoning_effort="high") == {}


def test_a_thinking_budget_is_spelled_as_the_server_does() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    assert formed(Forms(thinking="type"), thinking=thinking) == {"thinking": {"type": "enabled"}}
    assert formed(Forms(thinking="reasoning_effort"), thinking=thinking) == {"reasoning_effort": "low"}
    assert formed(Forms(thinking="reasoning"), thinking={"type": "disabled"}) == {"reasoning": {"effort": "none"}}
    assert formed(Forms(thinking="none"), thinking=thinking) == {}


def test_an_effort_inside_of_reasoning_is_one_that_is_known() -> None:
    known = Forms(efforts=("low", "medium"))
    given = {"effort": "high", "summary": "auto"}
    assert formed(known, reasoning=given) == {"reasoning": {"effort": "medium", "summary": "auto"}}
    assert formed(Forms(efforts=()), reasoning=given) == {"reasoning": {"summary": "auto"}}
    assert formed(Forms(efforts=()), reasoning={"effort": "high"}) == {}


def test_fields_of_messages_that_are_refused_are_left_out() -> None:
    forms = learned_forms(USUAL_FORMS, ["form:extras=cache_control", "form:extras=annotations"])
    part = {"type": "text", "text": "a"}
    given = {"role": "user", "annotations": [], "content": [{**part, "cache_control": {"type": "ephemeral"}}]}
    assert messages(forms, given) == [{"role": "user", "content": [part]}]


def test_refused_fields_are_left_out() -> None:
    forms = learned_forms(USUAL_FORMS, ["form:refused=store", "tools", "form:unknown=1"])
    assert formed(forms, store=True, user="u") == {"user": "u"}
