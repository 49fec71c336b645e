"""One frame of `gateway top`: the answer of `/status`, drawn for the terminal's width and height. Pure.

Any field may be missing (from an older or newer gateway): then its cell is empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gateway.apps.console.problems import WARNING, troubles
from gateway.apps.console.status_fields import (
    Fields,
    ago,
    count,
    figure,
    mapping,
    mapping_of,
    number,
    one_line,
    records,
    short,
    strings,
)

STATES = {
    "ready": "green",
    "busy": "cyan",
    "warming": "yellow",
    "suspect": "yellow",
    "draining": "magenta",
    "down": "bold red",
    "misconfigured": "bold red",
}
WELL = ("ready", "busy")
WIDEST = 160  # columns; longer lines are hard to read
UNBOUNDED = 100_000  # lines
ROWS_LEAST = 4  # rows of each table even on a small terminal
EVENTS_MOST = 20
BATCHES_MOST = 6
ID_SHOWN = 14  # characters of the id of a batch
ENDED = {"completed": "green", "failed": "bold red", "expired": "bold red", "cancelled": "dim"}  # states of batches
BANNERS_MOST = 6
CLIENTS_MOST = 4
OTHERS = {"elsewhere": "elsewhere", "share": "room"}  # column -> key of /status
IDLE_SHOWN = 60.0  # seconds


@dataclass(frozen=True)
class View:
    """The figures shown. `now`: Unix seconds of the gateway's clock. `status`: empty before the first answer.
    `trouble`: why there is no newer status ("cannot be reached: ..."). `usage`: the answer of /status/usage. `height`
    False: unlimited, for a pipe."""

    url: str
    status: Fields = field(default_factory=dict)
    usage: Fields = field(default_factory=dict)
    trouble: str | None = None
    age: float = 0.0  # of `status`, in seconds
    height: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The parts in order of importance; events get the remaining lines."""
        room = max(1, options.height or console.height) if self.height else UNBOUNDED
        options = options.update(width=min(options.max_width, WIDEST)).reset_height()

        def drawn(*parts: RenderableType | None) -> list[list[Segment]]:
            return [line for part in parts if part is not None for line in console.render_lines(part, options)]

        lines = drawn(header(self), *banners(self))
        if self.status:
            lines += drawn(machines(self.status), "", *backends(self.status, max(ROWS_LEAST, room // 3)))
            lines += drawn("", *aliases(self.status, max(ROWS_LEAST, room // 3)))
            lines += drawn(*batches(self.status))
        used = drawn("", clients(self.usage)) if self.usage else []
        left = room - len(lines) - len(used) - 2
        lines += drawn("", recent(self.status, max(ROWS_LEAST, min(EVENTS_MOST, left)))) + used
        for line in lines[:room]:
            yield from line
            yield Segment.line()


# -- header -----------------------------------------------------------------------------------------------------------


def header(view: View) -> Text:
    status = view.status
    line = Text(f"gateway {status.get('version', '')}".rstrip(), style="bold", overflow="ellipsis", no_wrap=True)
    line.append(f" at {view.url}", style="none")
    started, now = status.get("started"), status.get("now")
    if number(started) and number(now):
        line.append(f", up {ago(now - started)}", style="none")
    if isinstance(status.get("mode"), str):
        line.append(f", mode {one_line(status['mode'])}", style="none")
    shared = mapping_of(status, "shared")
    if shared.get("joined") and number(shared.get("gateways")):
        line.append(f", one of {shared['gateways']} gateways", style="none")
    return line


def machines(status: Fields) -> Text | None:
    """The nodes in one line."""
    line = Text(overflow="ellipsis", no_wrap=True)
    for name, node in mapping(status.get("nodes")).items():
        line.append(f"{name}", style=STATES["down"] if node.get("state") == "down" else "bold")
        line.append(f"{machine(node)}   ")
    return line if line else None


def machine(node: Fields) -> str:
    """Memory, temperature and GPU load of a node, as far as its exporter reports them."""
    text = ""
    used, total = node.get("memory_used"), node.get("memory_total") or node.get("memory")
    if number(used) and number(total) and total:
        text += f" {used / 2**30:.0f}/{total / 2**30:.0f} GiB"
    if number(node.get("temperature")):
        text += f" {node['temperature']:.0f} °C"
    return text


def banners(view: View) -> Iterable[Text]:
    """The problems, a line each, the worst first."""
    found = [*troubles(view.status, view.trouble, view.age)]
    for words, style in found[:BANNERS_MOST]:
        yield Text(f" {words} ", style=style, no_wrap=True, overflow="ellipsis")
    if len(found) > BANNERS_MOST:
        yield Text(f" and {len(found) - BANNERS_MOST} more ", style=WARNING)


# -- the fleet --------------------------------------------------------------------------------------------------------


def backends(status: Fields, most: int) -> Iterable[RenderableType]:
    """The backends in the order of the file. If not all fit, healthy idle ones are left out first. Parked ones are
    listed in one line."""
    known = mapping(status.get("backends"))
    parked = [name for name, backend in known.items() if backend.get("state") == "parked"]
    there = [name for name in known if name not in parked]
    by_weight = sorted(there, key=lambda name: _weight(known[name]))
    chosen = set(by_weight[:most])
    shared = mapping_of(status, "shared")
    others = () if not shared else ("elsewhere",) if shared.get("joined") else ("share",)
    columns = (
        ("backend", 12),
        ("state", 5),
        ("busy", 4),
        *((name, 1) for name in others),
        ("queue", 1),
        ("tok/s", 5),
        ("first", 6),
        ("KV", 3),
        ("why", 12),
    )
    table = _table(*columns)
    for name in there:
        if name in chosen:
            table.add_row(*_backend(name, known[name], status.get("now"), others))
    yield table
    if rest := [name for name in there if name not in chosen]:
        yield _names(f"and {len(rest)} more", rest)
    if parked:
        starts = {name: " (starts on request)" for name in parked if known[name].get("run") == "on_request"}
        yield _names("parked", (name + starts.get(name, "") for name in parked))


def _weight(backend: Fields) -> int:
    """Sort key: 0 = has a problem, 1 = busy, 2 = idle."""
    if backend.get("state") not in WELL or backend.get("drift"):
        return 0
    return 1 if backend.get("inflight") or backend.get("queue") else 2


def _names(what: str, names: Iterable[str]) -> Text:
    return Text(f"{what}: {', '.join(names)}", style="dim", no_wrap=True, overflow="ellipsis")


def _backend(name: str, backend: Fields, now: Any, others: Iterable[str]) -> list[Text]:
    """The cells of one backend. `others`: the columns if several gateways share the fleet: the slots of the others,
    our share."""
    state = str(backend.get("state", "?"))
    drift = strings(backend.get("drift"))
    since = backend.get("since")
    lasting = f"{ago(now - since)}: " if number(since) and number(now) else ""
    why = Text(lasting + one_line(backend.get("reason") or ""), style="none" if state in STATES else "dim")
    idle = backend.get("idle")
    if number(idle) and idle >= IDLE_SHOWN and not backend.get("inflight"):
        why = Text(f"on request, idle for {ago(idle)}", style="dim")
    if state in WELL and (told := held(backend, now) or slots_told(backend)):
        why = Text(told, style="dim")
    if drift:
        why = Text(f"drift: {one_line('; '.join(drift))}", style="yellow")
    numbers = mapping_of(backend, "now")
    return [
        Text(name, style="bold"),
        Text(state, style=STATES.get(state, "dim")),
        Text(busy(backend)),
        *(Text(figure(backend.get(OTHERS[column]) or None, ".0f")) for column in others),
        Text(figure(backend.get("queue") or None, ".0f"), style="yellow"),
        Text(figure(numbers.get("decode"), ".0f")),
        Text(short(numbers.get("ttft_p50"))),
        Text(figure(numbers.get("kv"), ".0%")),
        why,
    ]


def held(backend: Fields, now: Any) -> str:
    """`holds its model: 32,768 tokens, 5.2 GiB, for 4 min more`; empty for a server that does not tell."""
    model = mapping_of(backend, "held")
    if not model:
        return ""
    if not model.get("loaded"):
        last = f", the last load took {ago(model['load_seconds'])}" if number(model.get("load_seconds")) else ""
        return f"its model is not loaded{last}"
    window, size, until = model.get("window"), model.get("bytes"), model.get("until")
    told = [f"{window:,} tokens"] if number(window) else []
    told += [f"{size / 2**30:.1f} GiB"] if number(size) else []
    told += [f"for {ago(until - now)} more"] if number(until) and number(now) and until > now else []
    return "holds its model" + (f": {', '.join(told)}" if told else "")


def slots_told(backend: Fields) -> str:
    """`6 slots, learned: with more it preempts`; empty where routes.yaml or its server says how many."""
    reason, slots = one_line(backend.get("slots_reason") or ""), backend.get("slots")
    return f"{slots} slots, {reason}" if number(slots) and reason.startswith("learned") else ""


def busy(backend: Fields) -> str:
    """`3/4`, with requests of other clients of the engine `3/4 +1`."""
    if not number(backend.get("inflight")):
        return ""
    slots, foreign = backend.get("slots"), backend.get("foreign")
    text = f"{backend['inflight']}" + (f"/{slots}" if number(slots) else "")
    return text + (f" +{foreign}" if number(foreign) and foreign else "")


def aliases(status: Fields, most: int) -> Iterable[RenderableType]:
    """The aliases and the backends that answer for them, without backends' own names. If not all fit, those served
    by their first step are left out."""
    named = {name: alias for name, alias in mapping(status.get("aliases")).items() if not alias.get("implicit")}
    chosen = sorted(named, key=lambda name: named[name].get("course") in ("home", "parked"))[:most]
    table = _table(("alias", 12), ("answered by", 11), ("first", 6), ("why", 20))
    for name, alias in named.items():
        if name in chosen:
            table.add_row(*_alias(name, alias))
    if named:
        yield table
    if rest := [name for name in named if name not in chosen]:
        yield _names(f"and {len(rest)} more", rest)


def _alias(name: str, alias: Fields) -> list[Text]:
    serving = strings(alias.get("serving"))
    course = str(alias.get("course", ""))
    style = "green" if course == "home" else "dim" if course == "parked" else STATES["down"]
    step = f"step {alias['step']}: " if number(alias.get("step")) and alias["step"] > 1 else ""
    return [
        Text(name, style="bold"),
        Text(", ".join(serving) or course or "?", style=style),
        Text(short(mapping_of(alias, "now").get("ttft_p50"))),
        Text(step + one_line(alias.get("why") or ""), style="dim"),
    ]


def batches(status: Fields) -> Iterable[RenderableType]:
    """The batches that have not ended, the newest first; where there is none, the last one."""
    known = records(status.get("batches"))
    shown = [one for one in known if str(one.get("status")) not in ENDED] or known[:1]
    if not shown:
        return
    columns = ("batch", ID_SHOWN), ("state", 9), ("done", 5), ("failed", 6), ("rate", 5), ("left", 5), ("client", 6)
    table = _table(*columns, ("models", 8))
    for one in shown[:BATCHES_MOST]:
        table.add_row(*_batch(one))
    yield ""
    yield table
    if len(shown) > BATCHES_MOST:
        yield Text(f"and {len(shown) - BATCHES_MOST} more", style="dim")


def _batch(batch: Fields) -> list[Text]:
    failed, rate, left = (batch.get(name) for name in ("failed", "rate", "left"))
    done = sum(count(batch.get(name)) for name in ("completed", "failed", "cancelled"))
    state, total = one_line(batch.get("status") or "?"), figure(batch.get("total"), ",")
    ended = f"{done:,}" if number(batch.get("completed")) or done else ""
    return [
        Text(one_line(batch.get("id") or "?")[:ID_SHOWN], style="bold"),
        Text(state, style=ENDED.get(state, "cyan")),
        Text(f"{ended}/{total}"),
        Text(figure(failed or None, ","), style="yellow"),
        Text(f"{rate:.1f}/s" if number(rate) else ""),
        Text(ago(left) if number(left) else ""),
        Text(one_line(batch.get("client") or "")),
        Text(one_line(", ".join(strings(batch.get("models"))))),
    ]


# -- events and clients -----------------------------------------------------------------------------------------------


def recent(status: Fields, most: int) -> Table | None:
    """The events, the latest first."""
    events = records(status.get("events"))
    if not events:
        return None
    table = _table(("ago", 6), ("", 10), ("what happened", 20))
    for event in reversed(events[-most:]):
        at, now = event.get("at"), status.get("now")
        after = str(event.get("after") or event.get("result") or event.get("kind") or "")
        words = Text(after, style=STATES.get(after, "none"))
        words.append(f": {one_line(event.get('reason') or '')}", style="none")
        name = str(event.get("backend") or event.get("kind") or "")
        table.add_row(Text(ago(now - at) if number(at) and number(now) else ""), Text(name, style="bold"), words)
    return table


def clients(usage: Fields) -> Table:
    """Today's clients, the busiest first."""
    rows = sorted(records(mapping_of(usage, "today").get("clients")), key=lambda row: -count(row.get("requests")))
    heads = [("today", 10), ("requests", 8), ("failed", 6), ("prompt", 6), ("answer", 6)]
    spoken = any(map(_audio_seconds, rows))
    table = _table(*heads, *([("audio s", 7)] if spoken else []), ("USD", 6))
    for row in rows[:CLIENTS_MOST]:
        usd = row.get("usd")
        cost = "?" if usd is None else figure(usd, ",.2f") if usd else ""
        cells = [figure(row.get(name), ",") for name in ("requests", "errors", "prompt", "completion")]
        if spoken:
            cells.append(figure(_audio_seconds(row), ",.0f"))
        table.add_row(Text(str(row.get("client") or "-")), *map(Text, cells), Text(cost))
    if len(rows) > CLIENTS_MOST:
        table.add_row(Text(f"and {len(rows) - CLIENTS_MOST} more", style="dim"))
    return table


def _audio_seconds(row: Fields) -> float:
    """Of speech, in and out; a gateway before these counts reports none."""
    return count(row.get("audio_in_seconds")) + count(row.get("audio_out_seconds"))


# -- tables -----------------------------------------------------------------------------------------------------------

_FIGURES = "elsewhere,share,queue,tok/s,first,KV,requests,failed,prompt,answer,USD,ago,done,rate,left,audio s"
_RIGHT = frozenset(_FIGURES.split(","))


def _table(*columns: tuple[str, int]) -> Table:
    """A table of (column, least width); the last column takes the remaining width and is cut first."""
    table = Table(box=None, pad_edge=False, expand=True, padding=(0, 1, 0, 0), header_style="dim underline")
    last = columns[-1][0] in ("why", "what happened", "models")
    for place, (name, least) in enumerate(columns):
        ratio = 1 if last and place == len(columns) - 1 else None
        justify: Any = "right" if name in _RIGHT else "left"
        table.add_column(name, justify=justify, min_width=least, no_wrap=True, overflow="ellipsis", ratio=ratio)
    return table
