"""`aliases.*.ask_all`, as an app of a gateway."""

from __future__ import annotations

from gateway.apps.ask_all.asking import AskAll
from gateway.runtime.apps import Extension
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    gateway.services.ask_all = AskAll
    return Extension()
