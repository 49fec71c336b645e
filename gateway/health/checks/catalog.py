"""The catalog of checks by name: when a check is skipped, and how its reply is graded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.domain.facts import Observation
from gateway.health.checks import graders, requests
from gateway.health.checks.graders import is_garbage
from gateway.health.checks.profile import Profile
from gateway.health.checks.reply import CheckReply, ParsedAnswer, read_stream, read_whole, short
from gateway.health.checks.requests import BRIEF_THOUGHT, Body
from gateway.inspection.error_replies import Verdict
from gateway.inspection.error_replies import judge as verdict_of

NO_ANSWER = "no answer: "  # prefix of `Observation.seen` when the backend did not answer


@dataclass(frozen=True, slots=True)
class Check:
    """`ask` builds the request body (without the model's name). `grade` grades the answer parsed from a good reply."""

    name: str
    meaning: str
    ask: Callable[[Profile], Body]
    grade: Callable[[Profile, ParsedAnswer], Observation]


CHECKS: Mapping[str, Check] = {
    check.name: check
    for check in (
        Check("life", "answers with some tokens", requests.life, graders.life),
        Check("plain", "a short answer", requests.plain, graders.plain),
        Check("stream", "the same streamed, with its finish_reason and [DONE]", requests.stream, graders.stream),
        Check("arithmetic", "12*17 is 204, and no garbage", requests.arithmetic, graders.arithmetic),
        Check(
            "reasoning", "thoughts in their own field, the answer beside them", requests.reasoning, graders.reasoning
        ),
        Check("thinking_on", "thinks when asked to", requests.reasoning, graders.thinking_on),
        Check("thinking_off", "does not think when asked not to", requests.thinking_off, graders.thinking_off),
        Check("tool_auto", "calls the tool that fits", requests.tool_auto, graders.tool_auto),
        Check("tool_required", "calls some tool when one is required", requests.tool_required, graders.tool_required),
        Check("tool_named", "of two tools calls the named one", requests.tool_named, graders.tool_named),
        Check("tool_parallel", "two calls in one answer; not a fault", requests.tool_parallel, graders.tool_parallel),
        Check("tool_stream", "the call of tool_auto, streamed", requests.tool_stream, graders.tool_stream),
        Check(
            "thoughts_kept",
            "thoughts of the history reach the model; not a fault",
            requests.thoughts_kept,
            graders.thoughts_kept,
        ),
        Check("json_schema", "the answer fits a schema", requests.json_schema, graders.json_schema),
        Check("window", "a prompt over the window is refused, not cut", requests.window, graders.window),
    )
}
ALL = tuple(name for name in CHECKS if name != "life")
_THINKING = ("reasoning", "thinking_on", "thinking_off")
_MAY_BE_CUT = ("tool_auto", "tool_required", "tool_named", "tool_parallel", "tool_stream", "json_schema")


# -- when a check is skipped -------------------------------------------------------------------------------------------


def skipped(name: str, profile: Profile, seen: Mapping[str, Observation]) -> str | None:
    """Why this check is skipped, given what the earlier checks saw (`seen`: check -> observation), else None."""
    no_answer = next((earlier.seen for earlier in seen.values() if earlier.seen.startswith(NO_ANSWER)), None)
    if no_answer is not None:
        return no_answer
    if _failed(seen.get("plain")):
        return "plain did not work"
    if name in ("tool_parallel", "tool_stream") and _failed(seen.get("tool_auto")):
        return "tool_auto did not work"
    if name in ("thinking_on", "thinking_off"):
        return _thinking_skipped(profile, seen.get("reasoning"))
    if name == "window":
        return _window_skipped(profile)
    if name == "thoughts_kept":
        return _history_skipped(profile, seen)
    return None


def _failed(observation: Observation | None) -> bool:
    return observation is not None and observation.result in ("no", "untested")


def _thinking_skipped(profile: Profile, reasoning: Observation | None) -> str | None:
    if profile.thinking == "never":
        return "it never thinks"
    if profile.thinking == "always":
        return "its thinking cannot be switched"
    if profile.switch is None:
        return "not known how its thinking is switched: set `thinking_switch` in routes.yaml"
    if profile.thinking is None and (reasoning is None or reasoning.result not in ("yes", "mended")):
        return "not known to think: if it does, set `thinking` in routes.yaml"
    return None


def _history_skipped(profile: Profile, seen: Mapping[str, Observation]) -> str | None:
    if profile.refuses_unread:
        return "vLLM renders the model's own template, which keeps them"
    if profile.thinking == "never" or _failed(seen.get("reasoning")) or _failed(seen.get("tool_auto")):
        return "it is not seen to think and to call"
    return None


def _window_skipped(profile: Profile) -> str | None:
    if not profile.refuses_unread:
        return "it is not known to refuse before it has read the whole prompt"
    return "it does not report its window" if profile.window is None else None


# -- grading a reply ---------------------------------------------------------------------------------------------------


def judge(name: str, profile: Profile, reply: CheckReply, body: Body) -> Observation:
    """Grade the reply to the request `body` of check `name`."""
    if reply.failure is not None:
        # Without a reply the capability stays untested. A basic check fails nevertheless: not replying is a fault.
        fault = name in ("life", "plain", "stream", "arithmetic") and not (reply.gone or reply.ours)
        return Observation("no" if fault else "untested", NO_ANSWER + reply.failure)
    if reply.status != 200:
        return _refused(name, profile, reply)
    answer = read_stream(reply) if body.get("stream") is True else read_whole(reply)
    if isinstance(answer, str):
        return Observation("no", answer)
    observation = CHECKS[name].grade(profile, answer)
    may_be_cut = name in _MAY_BE_CUT or (profile.brief and body["max_tokens"] == BRIEF_THOUGHT)
    is_no = observation.result == "no" and not is_garbage(answer.content)
    if is_no and may_be_cut and _is_cut(answer, body):
        return Observation(
            "untested", f"cut by the check's own limit of {body['max_tokens']} tokens: {observation.seen}"
        )
    return observation


def _is_cut(answer: ParsedAnswer, body: Body) -> bool:
    """Was the answer cut by `max_tokens`? The tokens are counted too, because vLLM does not always report the
    finish_reason `length` for a cut answer that has calls."""
    return answer.finish == "length" or answer.tokens >= int(body["max_tokens"])


def _refused(name: str, profile: Profile, reply: CheckReply) -> Observation:
    verdict = verdict_of(reply.status, reply.headers, reply.body, "chat")
    if name == "window" and verdict.kind == "too_long":
        return Observation("yes", f"refused: {short(verdict.message or verdict.reason)}")
    if verdict.kind == "cooldown":
        return Observation("untested", f"busy: {verdict.reason}")
    if verdict.kind == "unserved":
        return Observation("untested", "it serves no chat")
    if name in _THINKING and profile.thinking is None:
        return Observation("untested", f"not known to think, and it {verdict.reason}")
    return Observation("no", verdict.reason + _missing_flags(profile, verdict))


def _missing_flags(profile: Profile, verdict: Verdict) -> str:
    lacks_parser = verdict.kind == "incapable" and "--tool-call-parser" in verdict.message
    return f"; start vLLM with {profile.tool_flags}" if lacks_parser and profile.tool_flags else ""
