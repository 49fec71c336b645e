"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {
    "demo": ("Run a simulated fleet and the gateway; nothing else is needed.", "demo:command"),
    "sim": ("Run one simulated backend, or start and stop those of the demo.", "sim:command"),
}
