"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {
    "check": ("Check routes.yaml, and show where each alias leads.", "checking.command:command"),
    "fleet": ("Check, plan and render what runs on the Sparks.", "group:command"),
}
