"""The commands of this app: name → summary, and where the command is."""

COMMANDS = {
    "demo": ("Run a simulated fleet and the gateway; nothing else is needed.", "gateway.apps.demo.demo:command"),
    "sim": ("Run one simulated backend, or start and stop those of the demo.", "gateway.apps.demo.sim:command"),
}
