"""The commands of this app: name → summary, and where the command is."""

COMMANDS = {
    "init": (
        "Discover running servers and write a routes.yaml for them.",
        "gateway.apps.importing.init_command:command",
    ),
    "import": (
        "Convert another gateway's config, a unit, compose file or script to a routes.yaml.",
        "gateway.apps.importing.import_command:command",
    ),
}
