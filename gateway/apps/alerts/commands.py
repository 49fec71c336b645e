"""The commands of this app: name → summary, and where the command is."""

COMMANDS = {
    "alerts": ("Send a test message through every channel of `alerts`.", "gateway.apps.alerts.command:command"),
}
