"""Pictures described for models that cannot see (`aliases.*.describe_images`), as an app of a gateway."""

from __future__ import annotations

from gateway.apps.describing.pictures import PictureDescriber
from gateway.runtime.apps import Extension
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    gateway.services.describer = PictureDescriber()
    return Extension()
