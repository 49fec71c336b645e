"""A server of the Model Context Protocol with one tool, on standard input and output: agents start it."""

from __future__ import annotations

import json
import sys

TOOL = {
    "name": "read_note",
    "description": "Read the note of a name.",
    "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}

for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked.get("method"), asked.get("params") or {}
    if method == "initialize":
        told = {
            "protocolVersion": params.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "notes", "version": "1"},
        }
    elif method == "tools/list":
        told = {"tools": [TOOL]}
    elif method == "tools/call":
        told = {"content": [{"type": "text", "text": f"the note is {6 * 7000}"}]}
    else:
        told = {}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": told}), flush=True)
