"""Views of a gateway in a terminal: its plans, its state and its usage."""

COMMANDS = {
    "explain": ("Show where a request to an alias would go, and why not elsewhere.", "explain:command"),
    "top": (
        "Show the fleet in a terminal: states, slots, queues, who answers, what happened.",
        "top:command",
    ),
    "usage": ("Show who has used what: requests, tokens, seconds, USD.", "usage:command"),
}
