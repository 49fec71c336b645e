"""`gateway alerts`: sends a test message through every channel."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click

from gateway.apps.alerts.alert import Alert
from gateway.apps.alerts.channels import AlertMessage, DeadmanChannel, DeliveryResult, channels_of, new_client
from gateway.cli.options import config_option, examples, json_option, load_or_exit
from gateway.config.snapshot import Alerts

TEXT = "this is a test: alerts of the gateway arrive here"


@examples("gateway alerts test")
@click.group(name="alerts")
def command() -> None:
    """Alerts: who is notified when a backend fails or comes back (docs/alerts.md)."""


@examples("gateway alerts test", "gateway alerts test --config fleet.yaml --json")
@command.command()
@config_option
@json_option
def test(config: Path, as_json: bool) -> None:
    """Send a test message through every channel of `alerts`, and print what each answered.

    Exit code 0: every channel accepted it; 1: one did not, or there is none; 2: wrong usage.
    """
    alerts = load_or_exit(config, as_json=as_json).snapshot.alerts
    answers = asyncio.run(send_test(alerts))
    ok = bool(answers) and all(answer.ok for _, answer in answers)
    if as_json:
        channels = [{"channel": name, "ok": answer.ok, "said": answer.detail} for name, answer in answers]
        click.echo(json.dumps({"ok": ok, "channels": channels}, indent=2))
    elif not answers:
        click.echo(f"{config} has no channel: write alerts: {{webhook: URL}}, or notify, telegram, deadman", err=True)
    else:
        for name, answer in answers:
            mark = click.style("ok    ", fg="green") if answer.ok else click.style("failed", fg="red")
            click.echo(f"{mark}  {name}  {answer.detail}")
    sys.exit(0 if ok else 1)


async def send_test(alerts: Alerts) -> list[tuple[str, DeliveryResult]]:
    """(name, answer) of each channel: one attempt each, all at once."""
    import socket
    import time

    now = time.time()
    message = AlertMessage((Alert("test", "test", TEXT, now, good=True),), socket.gethostname(), now)
    channels = channels_of(alerts)
    async with new_client() as client:
        sent = [channel.send(client, message, now) for channel in channels]
        names = [channel.name for channel in channels]
        if alerts.deadman is not None:
            deadman = DeadmanChannel(alerts.deadman)
            sent.append(deadman.ping(client))
            names.append(deadman.name)
        return list(zip(names, await asyncio.gather(*sent), strict=True))
