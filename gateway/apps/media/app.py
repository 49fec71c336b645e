"""Speech and pictures, as an app of a gateway."""

from __future__ import annotations

from gateway.apps.media.handlers import AudioHandler, UploadHandler
from gateway.apps.media.voices import Voices
from gateway.domain.endpoints import PASSED_ON, UPLOADS
from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    voices = Voices(gateway.metrics.failures, gateway.short_of)

    def routers() -> Routers:
        from gateway.apps.media import api

        return (api.router(gateway, voices),)

    handlers = {**{one.name: AudioHandler for one in PASSED_ON}, **{one.name: UploadHandler for one in UPLOADS}}
    return Extension(part=voices, follow=voices.follow, paths=frozenset({"audio"}), routers=routers, handlers=handlers)
