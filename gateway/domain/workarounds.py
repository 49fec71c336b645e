"""What the gateway does in place of a server that lacks it, as data: a part of the server's row of traits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workarounds:
    """What is done for a server with OpenAI's API. Each is independent of the others.

    `cuts_stop`: it does not end an answer at a stop string. It gets none; the gateway ends the answer.
    `asks_streams`: without `stream` it goes on computing when its client has left. It is always asked for a stream,
    of which the gateway makes one answer.
    `asks_one`: it gives one answer to a request. Several (`n`, a list of prompts) are asked for one by one.
    `fills_limit`: without a limit its answers are cut at a small default. It gets what the window leaves.
    `drops_tools`: it calls tools in spite of `tool_choice: none`. Then it gets no tools.
    `checks_limit`: a limit below 1 is an error that looks like its own failure. The gateway refuses it.
    `float_bias`: it takes the values of `logit_bias` only as floats.
    `died`: the words of an error, of whatever status, with which it answers everything after its engine has died."""

    cuts_stop: bool = False
    asks_streams: bool = False
    asks_one: bool = False
    fills_limit: bool = False
    drops_tools: bool = False
    checks_limit: bool = False
    float_bias: bool = False
    died: str | None = None


MLX = Workarounds(
    cuts_stop=True, asks_streams=True, asks_one=True, fills_limit=True, drops_tools=True, died="generation thread died"
)
TRANSFORMERS = Workarounds(
    cuts_stop=True,
    asks_streams=True,
    asks_one=True,
    fills_limit=True,
    drops_tools=True,
    checks_limit=True,
    float_bias=True,
)
