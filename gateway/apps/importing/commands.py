"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {
    "init": ("Discover running servers and write a routes.yaml for them.", "init_command:command"),
    "import": (
        "Convert another gateway's config, a unit, compose file or script to a routes.yaml.",
        "import_command:command",
    ),
}
