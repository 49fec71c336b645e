"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {
    "probe": ("Show with tiny real requests what the backends do.", "command:command"),
}
