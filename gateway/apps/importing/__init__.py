"""The configuration of another gateway as a routes.yaml: pure converters, one file per format.

`read_source` reads the other file, `convert` makes a `Draft` of it with a note for each thing that has no counterpart
here, `render` writes the draft as text, and `verify_round_trip` loads that text as the gateway would.
"""

COMMANDS = {
    "init": ("Discover running servers and write a routes.yaml for them.", "init_command:command"),
    "import": (
        "Convert another gateway's config, a unit, compose file or script to a routes.yaml.",
        "import_command:command",
    ),
}
