"""A backup of `server.data` in one file, made while the gateway runs."""

COMMANDS = {
    "backup": ("Write `server.data` into one file, also while the gateway runs.", "archive:command"),
}
