"""The commands of this app: name → summary, and where the command is."""

COMMANDS = {
    "explain": (
        "Show where a request to an alias would go, and why not elsewhere.",
        "gateway.apps.console.explain:command",
    ),
    "top": (
        "Show the fleet in a terminal: states, slots, queues, who answers, what happened.",
        "gateway.apps.console.top:command",
    ),
    "usage": ("Show who has used what: requests, tokens, seconds, USD.", "gateway.apps.console.usage:command"),
}
