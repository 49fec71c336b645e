"""One package per kind of server behind the gateway: how requests are sent to it, how its answers are read, what it
reports of itself. What each kind supports is data: gateway/domain/servers.toml."""
