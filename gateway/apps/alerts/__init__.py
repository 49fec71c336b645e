"""Alerts: who is told when a backend fails or comes back, and over which channel."""

COMMANDS = {
    "alerts": ("Send a test message through every channel of `alerts`.", "command:command"),
}
