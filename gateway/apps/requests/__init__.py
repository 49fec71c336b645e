"""The last requests: what happened to each, and what those do that run."""

COMMANDS = {
    "requests": ("List the last requests and those that run.", "command:requests"),
    "why": ("Tell what happened to one request, by its x-request-id.", "command:why"),
    "replay": ("Send a captured request again, and show both answers side by side.", "command:replay"),
}
