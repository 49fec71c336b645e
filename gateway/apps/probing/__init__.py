"""`gateway probe`: what backends do, seen with tiny real requests."""

COMMANDS = {
    "probe": ("Show with tiny real requests what the backends do.", "command:command"),
}
