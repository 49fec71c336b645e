"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {
    "batch": ("Run many requests from a file, and compare what several judges say.", "command:command"),
}
