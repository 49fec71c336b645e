"""What a backend's answer to one request teaches about the backend, and what a refusal means for that request alone.

The refused request itself may use everything that the refusal reports. For other requests only a statement of the
server itself counts (not `Verdict.unverified`), and one that contradicts routes.yaml or an observation counts only when
a second source reports it too. Failures are judged in blame.py."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.facts import Source
from gateway.domain.forms import UNLEARNED
from gateway.domain.request import NO_MEDIA, InferenceRequest, Refusal
from gateway.domain.upstream import ErrorTold, Response
from gateway.engines.base import EngineRequest, WholeResponse
from gateway.engines.outgoing import forms_for, outgoing_fields, outgoing_limits
from gateway.inspection.complaints import WITHOUT_THINKING, read_complaint
from gateway.inspection.echo import client_mentions, mentions
from gateway.inspection.error_replies import Verdict, judge, told_status
from gateway.inspection.known_errors import is_pool_full
from gateway.inspection.policy import CLOSER, may_lack_opener
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import WholeAnswer
from gateway.metrics.registry import Metrics
from gateway.routing.inspection_policy import STRAY_THOUGHTS

COOLDOWN = 5.0  # seconds, for a 429 without Retry-After
IMAGE_MOST = 32_768  # tokens that a server may take for a picture or a recording
TEMPLATE_MOST = 32_768  # tokens that a server's template may add to a prompt
CORRECTIONS_MOST = 8  # forms that one request is changed to for one backend
WORTH_ASKING = 16  # tokens: with a smaller limit the same request is not sent again


@dataclass(slots=True)
class Feedback:
    """A request whose answers may teach something about a backend. `several_clients`: clients have keys, so the
    gateway can distinguish them."""

    request: InferenceRequest
    request_id: str
    several_clients: bool = False

    def source(self) -> Source:
        """The source of what is learned. Reads the whole prompt, so it is called only when there is something to
        learn."""
        digest = blake2b(digest_size=16)
        for name in self.request.endpoint.prompt:
            if name in self.request.fields:
                digest.update(memoryview(self.request.fields[name]))
        return Source(self.request_id, self.request.sender, digest.digest(), self.several_clients)


def verdict_of(
    call: EngineRequest, request: InferenceRequest, state: BackendState, response: Response, body: bytes
) -> Verdict:
    """What the backend's error answer to this call means."""
    if (unmet := getattr(response, "unmet", None)) is not None:  # nothing was sent
        return Verdict("incapable", unmet.message, 400, unmet.message, unmet.param, unverified=True)
    own = call.own
    endpoint = own.form.endpoint if own is not None and own.form.untranslatable is not None else request.endpoint
    asked_by, echoed = state.model or request.model, partial(mentions, request)
    verdict = judge(response.status, response.headers, body, endpoint.name, model=asked_by, echoed=echoed)
    if verdict.kind == "unserved" and endpoint is not request.endpoint:
        return replace(verdict, kind="incapable")  # it may well serve chats, so no chat can find out about it
    return verdict


def unmet(verdict: Verdict) -> bool:
    """Is it a demand that the engine itself has refused, without asking its server?"""
    return verdict.kind == "incapable" and verdict.lack is None and verdict.status == 400 and verdict.unverified


def verdict_of_told(
    call: EngineRequest, request: InferenceRequest, state: BackendState, failure: ErrorTold, reason: str
) -> Verdict:
    """What an error inside of an answer means: the same words with their status would mean it too. `reason`: the words
    for a failure."""
    status = told_status(failure.body)
    verdict = verdict_of(call, request, state, WholeResponse(status or 500, failure.body), failure.body)
    return replace(verdict, reason=reason, status=0) if verdict.kind == "failed" else verdict


def within_reason(verdict: Verdict, state: BackendState, request: InferenceRequest, alias: Alias) -> Verdict:
    """The verdict without numbers of tokens that cannot be true of this request: a window that the request
    could not have filled, and a prompt of more tokens than bytes. Clients shorten their conversation to what the error
    says."""
    if verdict.kind != "too_long" or (verdict.window is None and verdict.prompt_tokens is None):
        return verdict
    media = request.media
    longest = request.prompt_bytes - media.bytes + media.pictures * IMAGE_MOST + TEMPLATE_MOST
    limit = max([sent for sent in outgoing_limits(request, alias, state) if type(sent) is int], default=0)
    window, prompt = verdict.window, verdict.prompt_tokens
    if window is not None and window > longest + limit:
        window = None
    if prompt is not None and prompt > longest:
        prompt = None
    if (window, prompt) == (verdict.window, verdict.prompt_tokens):
        return verdict
    return replace(verdict, window=window, prompt_tokens=prompt, unverified=True)


def learn(state: BackendState, feedback: Feedback, verdict: Verdict, now: float) -> bool:
    """Note in the backend's state what the verdict reports. True = the backend's own list of models can confirm it at
    once."""
    if verdict.kind == "cooldown":
        state.evidence.cool_down(COOLDOWN if verdict.retry_after is None else verdict.retry_after, now)
        if is_pool_full(verdict.message):
            state.saw_pool_full()
    if verdict.unverified or verdict.kind == "unserved":  # a harmless request has to confirm it (blame.py)
        return False
    if verdict.lack is not None and _may_teach(feedback.request, verdict.lack):
        source = feedback.source()
        if not _is_known(state, verdict.lack) or state.facts.is_confirmed(verdict.lack, True, source, now):
            state.facts.learn_lack(verdict.lack, now, source)
    if verdict.most_inputs is not None:
        state.facts.pooled = state.facts.pooled._replace(most_inputs=verdict.most_inputs)
    if verdict.kind == "too_long" and verdict.window is not None:
        return _learn_window(state, verdict.window, feedback, now)
    return False


def _learn_window(state: BackendState, window: int, feedback: Feedback, now: float) -> bool:
    known = state.window(now)
    if known is not None and known <= window:
        return False
    source = feedback.source()
    if known is None or state.facts.is_confirmed("window", window, source, now):
        state.facts.learn_window(window, now, source)
        return False
    return state.facts.unconfirmed["window"].source == source


def learn_stray_thoughts(state: BackendState, feedback: Feedback, now: float) -> None:
    """An answer had a closing tag of thoughts without an opening one. After two such requests the gateway learns
    that this backend's answers begin with thoughts. Only for model families that may do so, and if the prompt did
    not mention the tag itself."""
    if not may_lack_opener(state.checkpoint) or client_mentions(feedback.request, CLOSER):
        return
    source = feedback.source()
    if state.facts.is_confirmed(STRAY_THOUGHTS, True, source, now):
        state.facts.learn_lack(STRAY_THOUGHTS, now, source)


def count_found(answer: WholeAnswer | StreamTrack, state: BackendState, feedback: Feedback, metrics: Metrics) -> None:
    """Count the violations and mendings of an answer, and learn from them."""
    for kind in answer.violations:
        metrics.violations.inc(state.name, kind)
    for kind in answer.mended:
        metrics.mended.inc(state.name, kind)
    if feedback.request.tools and feedback.request.tool_choice in ("required", "named"):
        state.disobeys = "tool_choice_ignored" in answer.violations
    if answer.stray_close:
        learn_stray_thoughts(state, feedback, time.monotonic())
    elif answer.never_closed:
        state.facts.withdraw_lack(STRAY_THOUGHTS)


def _may_teach(request: InferenceRequest, lack: str) -> bool:
    """Did this request use the ability whose lack was reported?"""
    if lack in ("tools", "tool_parser"):
        return request.tools
    if lack in ("images", "audio", "pdf"):
        return request.media is not NO_MEDIA
    return True


def _is_known(state: BackendState, lack: str) -> bool:
    """True if routes.yaml declares, or a probe has observed, that the backend has this ability."""
    backend = state.backend
    if lack in ("tools", "tool_parser"):
        declared, check = backend.tool_parser not in (None, "none") or bool(backend.auto_tools), "tool_auto"
    elif lack == "thinking":
        declared, check = backend.thinking in ("optional", "always"), "thinking_on"
    elif lack.startswith("endpoint:"):
        return False
    else:
        declared_by = {"audio": backend.audio, "pdf": backend.pdf}
        return declared_by.get(lack, backend.vision) is True
    seen = state.facts.observed.get(check)
    return declared or (seen is not None and seen.result in ("yes", "mended"))


def ask_again(state: BackendState, request: InferenceRequest, alias: Alias, verdict: Verdict) -> bool:
    """Note what the refusal reports about this request. True = the same backend gets it again with a smaller limit,
    with which the prompt fits."""
    if verdict.kind != "too_long":
        return False
    before = outgoing_limits(request, alias, state)
    prompt = verdict.prompt_tokens
    if prompt is not None and not verdict.least:
        request.exact[state.name] = prompt
    least = prompt if prompt is not None and verdict.least else 0
    sums = verdict.limit_only and prompt is not None
    request.refused = {**(request.refused or {}), state.name: Refusal(verdict.window, least, sums)}
    after = outgoing_limits(request, alias, state)
    return verdict.limit_only and _smaller(before, after)


def _smaller(before: list[object], after: list[object]) -> bool:
    pairs = [(was, now) for was, now in zip(before, after, strict=True) if type(was) is int and type(now) is int]
    return any(now < was for was, now in pairs) and min(now for _, now in pairs) >= WORTH_ASKING


def correct(state: BackendState, request: InferenceRequest, alias: Alias, verdict: Verdict) -> bool:
    """Note which forms a refusal asks for (domain/forms.py). True = the same backend gets the request again in them."""
    wished = verdict.lack == "thinking" and request.thinking_wish
    if (verdict.kind not in ("client", "failed") and not wished) or verdict.status > 500:
        return False
    if not request.endpoint.chunk_object:
        return False
    tried = (request.corrected or {}).get(state.name, ())
    now = time.monotonic()
    sent, _ = outgoing_fields(request, alias, state)
    prompt = bytes(sent.get("messages", b"")).decode("utf-8", "replace")
    forms = forms_for(request, state, now)
    asked = WITHOUT_THINKING if wished else read_complaint(verdict.message, verdict.param, sent, prompt, forms)
    found = [form for form in asked if form not in tried]
    if not found or len(tried) + len(found) > CORRECTIONS_MOST:
        return False
    request.corrected = {**(request.corrected or {}), state.name: (*tried, *found)}
    again, _ = outgoing_fields(request, alias, state)
    return again != sent


def learn_forms(state: BackendState, request: InferenceRequest, request_id: str) -> None:
    """The backend has answered the request in the forms that were tried after a refusal."""
    for form in (request.corrected or {}).get(state.name, ()):
        if form in UNLEARNED:
            continue
        state.facts.learn_form(form, time.monotonic(), request_id)
