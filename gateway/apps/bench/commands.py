"""The commands of this app: name → summary, and where the command is."""

COMMANDS = {
    "bench": (
        "Measure how fast an alias or a server is, and what the gateway adds.",
        "gateway.apps.bench.command:command",
    ),
}
