"""Who hears of the fleet: receivers of alerts and of traces."""

# ruff: noqa: RUF009  (`setting` gives a dataclass field, as `dataclasses.field` does)

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gateway.config import kinds as k
from gateway.config.secret import Secret
from gateway.config.setting import about, in_file, setting


@dataclass(frozen=True, slots=True)
class Telegram:
    """A Telegram bot."""

    token: k.SecretText = field(metadata=about("The bot's token."))
    chat: k.Text = field(metadata=about("The chat's id, in quotes."))


@dataclass(frozen=True, slots=True)
class Alerts:
    """Whom to tell when a backend's state changes."""

    telegram: ClassVar[Telegram | None] = in_file(None)
    telegram_token: Secret | None = None
    telegram_chat: str | None = None
    webhook: k.OptionalSecret = setting(None, "URL that gets every alert as JSON.")
    notify: k.Secrets = setting((), "apprise URLs of services that get every alert as text.")
    deadman: k.OptionalSecret = setting(None, "URL asked every minute while the gateway lives.")
    draft_acceptance: k.Share = setting(
        0.15, "Share of drafted tokens below which a backend's speculative decoding is alerted; 0 = never."
    )


@dataclass(frozen=True, slots=True)
class Traces:
    """OpenTelemetry traces, sent by OTLP over HTTP."""

    endpoint: Secret = field(
        metadata=about(
            "URL of an OTLP/HTTP receiver, with or without /v1/traces; none = no traces.",
            kind=k.OptionalSecret,
        )
    )
    sample: k.Share = setting(1.0, "Share of the requests that are traced, where no caller has decided; 0 to 1.")
    prompts: k.Yes = setting(False, "Prompts go with the traces, except those of `local_only`.")
