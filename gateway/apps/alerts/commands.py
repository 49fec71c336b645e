"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {
    "alerts": ("Send a test message through every channel of `alerts`.", "command:command"),
}
