"""What has one cause is one message, and its end is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.apps.alerts.alert import Alert, FleetPicture, told
from gateway.apps.alerts.alerts import AlertState
from gateway.domain.health_state import State
from gateway.routing.alias_status import AliasView, BackendView

REFUSED = "/health: [Errno 111] Connect call failed ('10.0.0.1', {port})"
HOSTS = {"a": "spark1", "b": "spark1", "c": "spark1", "d": "spark2", "e": "spark2"}


@dataclass
class Fleet:
    """Backends a, b, c on spark1; d and e on spark2. The aliases `w` and `x` have the steps a, d and b, e."""

    state: AlertState = field(default_factory=AlertState)
    now: float = 1000.0
    states: dict[str, State] = field(default_factory=lambda: dict.fromkeys(HOSTS, State.READY))
    mends: dict[str, tuple[str, str]] = field(default_factory=dict)
    usd: dict[str, float] = field(default_factory=dict)
    messages: list[list[Alert]] = field(default_factory=list)

    def after(self, seconds: float, **states: State) -> list[str]:
        """The texts of the messages that are sent while things stay so for these seconds."""
        self.states |= states
        until, before = self.now + seconds, len(self.messages)
        while self.now < until:
            if alerts := self.state.step(self.now, self.picture()):
                self.messages.append(alerts)
            self.now += 2.0
        return [told(alerts) for alerts in self.messages[before:]]

    def picture(self) -> FleetPicture:
        reasons = {name: REFUSED.format(port=8000 + port) for port, name in enumerate(HOSTS)}
        views = tuple(BackendView(name, state, reasons[name]) for name, state in self.states.items())
        aliases = tuple(self.alias(name, steps) for name, steps in {"w": ("a", "d"), "x": ("b", "e")}.items())
        before = {"w": ("a", "d")[: aliases[0].step], "x": ("b", "e")[: aliases[1].step]}
        addresses = {"spark1": "10.0.0.1", "spark2": "10.0.0.2"}
        return FleetPicture(
            views, aliases, hosts=HOSTS, addresses=addresses, before=before, mends=self.mends, usd=self.usd
        )

    def alias(self, name: str, steps: Iterable[str]) -> AliasView:
        out: list[str] = []
        for step, backend in enumerate(steps):
            if self.states[backend] is State.READY:
                return AliasView(name, "fallback" if step else "home", step, (backend,), "; ".join(out))
            out.append(f"{backend} is {self.states[backend].value}")
        return AliasView(name, "nothing", why="; ".join(out))

    def kinds(self, message: int = -1) -> list[tuple[str, str]]:
        return [(alert.kind, alert.name) for alert in self.messages[message]]


def down(names: str) -> dict[str, State]:
    return dict.fromkeys(names, State.DOWN)


def ready(names: str) -> dict[str, State]:
    return dict.fromkeys(names, State.READY)


def test_a_host_that_falls_is_one_message_with_its_aliases_and_one_command() -> None:
    fleet = Fleet()
    assert fleet.after(3600.0, **down("abc")) == [
        "all 3 backends on spark1 are down. a, b, c: /health: Connect call failed\n"
        "alias w is on a fallback: d serves it\n"
        "alias x is on a fallback: e serves it\n"
        "What to do: ping 10.0.0.1"
    ]
    assert {alert.cause for alert in fleet.messages[0]} == {"spark1"}


def test_backends_that_fall_one_after_the_other_are_waited_for() -> None:
    fleet = Fleet()
    assert fleet.after(8.0, **down("a")) == fleet.after(6.0, **down("b")) == []
    (text,) = fleet.after(3600.0, **down("c"))
    assert text.startswith("all 3 backends on spark1 are down. ")
    assert fleet.messages[0][0].at - 1000.0 <= 30.0


def test_a_backend_that_falls_again_and_again_delays_the_rest_by_seconds() -> None:
    fleet = Fleet()
    fleet.after(4.0, **down("a"))
    for _ in range(10):
        fleet.after(4.0, **down("e"))
        fleet.after(4.0, **ready("e"))
    assert fleet.messages[0][0].at - 1000.0 <= 32.0


def test_part_of_a_host_is_said_to_be_part() -> None:
    (text,) = Fleet().after(3600.0, **down("ac"))
    assert text.startswith("2 of 3 backends on spark1 are down. a, c: /health: Connect call failed\n")


def test_two_hosts_that_fall_at_once_are_one_message() -> None:
    fleet = Fleet()
    (text,) = fleet.after(890.0, **down("abcde"))
    assert text.splitlines() == [
        "all 3 backends on spark1 are down. a, b, c: /health: Connect call failed",
        "all 2 backends on spark2 are down. d, e: /health: Connect call failed",
        "aliases w, x have nothing left",
        "What to do: ping 10.0.0.1",
        "What to do: ping 10.0.0.2",
    ]
    assert fleet.after(600.0, **ready("abcde")) == [
        "a, b, c, d, e are back, after 15 min\n"
        "alias w is back: a serves it, after 15 min; meanwhile nobody did\n"
        "alias x is back: b serves it, after 15 min; meanwhile nobody did"
    ]


def test_what_falls_much_later_is_a_message_of_its_own() -> None:
    fleet = Fleet()
    fleet.after(600.0, **down("a"))
    (text,) = fleet.after(600.0, **down("e"))
    assert text.startswith("e is down: ")
    assert fleet.kinds() == [("backend_down", "e")]


def test_what_falls_later_and_worsens_an_alias_says_which_it_was() -> None:
    fleet = Fleet()
    fleet.after(600.0, **down("a"))
    (text,) = fleet.after(600.0, **down("d"))
    assert text.splitlines()[:2] == [f"d is down: {REFUSED.format(port=8003)}", "alias w has nothing left"]


def test_the_likely_cause_and_its_command_are_named() -> None:
    fleet = Fleet(mends={"a": ("the disk of spark1 is full", "ssh spark1 df -h")})
    (text,) = fleet.after(600.0, **down("a"))
    assert ". Likely: the disk of spark1 is full\n" in text
    assert text.endswith("\nWhat to do: ssh spark1 df -h")


def test_a_lone_backend_without_known_words_is_probed() -> None:
    (text,) = Fleet().after(600.0, **down("c"))
    assert text.endswith("\nWhat to do: gateway probe c")


def test_the_return_of_a_host_is_one_message_when_the_last_engine_has_loaded() -> None:
    fleet = Fleet()
    fleet.after(600.0, **down("abc"))
    fleet.usd = {"w": 0.31}
    fleet.after(60.0, a=State.WARMING, b=State.WARMING, c=State.WARMING)
    assert fleet.after(240.0, **ready("a")) == fleet.after(300.0, **ready("b")) == []
    assert fleet.after(600.0, **ready("c")) == [
        "a, b, c are back, after 20 min\n"
        "alias w is back: a serves it, after 11 min; meanwhile d served, for 0.31 USD\n"
        "alias x is back: b serves it, after 15 min; meanwhile e served"
    ]


def test_one_that_stays_out_is_not_waited_for_longer_than_a_minute() -> None:
    fleet = Fleet()
    fleet.after(600.0, **down("abc"))
    assert fleet.after(50.0, **ready("ab")) == []
    (text,) = fleet.after(30.0)
    assert text.startswith("a, b are back, after 10 min; still out: c\n")
    assert fleet.after(600.0, **ready("c")) == ["c is back, after 11 min"]
