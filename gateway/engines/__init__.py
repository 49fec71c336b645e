"""One package per kind of server behind the gateway: how it is asked, how its answers are read, what it tells of
itself. What each one does and does not do is data: gateway/domain/engine_traits.py."""
