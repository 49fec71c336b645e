"""Alerts, as an app of a gateway."""

from __future__ import annotations

from gateway.apps.alerts.alerter import Alerter
from gateway.runtime.apps import Extension
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    return Extension(part=Alerter(gateway))
