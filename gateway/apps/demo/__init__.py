"""A simulated fleet on this machine: `gateway demo`, and single servers of it."""

COMMANDS = {
    "demo": ("Run a simulated fleet and the gateway; nothing else is needed.", "demo:command"),
    "sim": ("Run one simulated backend, or start and stop those of the demo.", "sim:command"),
}
