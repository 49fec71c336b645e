"""What an operator asks about the fleet: launch blocks checked, files rendered, nodes looked at before a start."""

COMMANDS = {
    "check": ("Check routes.yaml, and show where each alias leads.", "checking.command:command"),
    "fleet": ("Check, plan and render what runs on the Sparks.", "group:command"),
}
