"""The commands of this app: name → summary, and where the command is."""

COMMANDS = {
    "batch": (
        "Run many requests from a file, and compare what several judges say.",
        "gateway.apps.judging.command:command",
    ),
}
