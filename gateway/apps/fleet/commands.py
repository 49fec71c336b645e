"""The commands of this app: name → summary, and where the command is."""

COMMANDS = {
    "check": ("Check routes.yaml, and show where each alias leads.", "gateway.apps.fleet.checking.command:command"),
    "fleet": ("Check, plan and render what runs on the Sparks.", "gateway.apps.fleet.group:command"),
}
