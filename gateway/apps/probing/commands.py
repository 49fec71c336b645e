"""The commands of this app: name → summary, and where the command is."""

COMMANDS = {
    "probe": ("Show with tiny real requests what the backends do.", "gateway.apps.probing.command:command"),
}
