"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {
    "requests": ("List the last requests and those that run.", "command:requests"),
    "why": ("Tell what happened to one request, by its x-request-id.", "command:why"),
    "replay": ("Send a captured request again, and show both answers side by side.", "command:replay"),
}
