"""One vLLM engine with many front ends: `/with/TOOL/REASONING/v1/...` answers as `vllm serve --tool-call-parser TOOL
--enable-auto-tool-choice --reasoning-parser REASONING` would (`none` = without that flag).

usage: python front_ends.py MODEL [vllm serve flags...], by serve.sh with FRONT_ENDS=1

Every front end is vLLM's own: its command line goes through vLLM's parser, and `build_app` and `init_app_state` make of
it what they make of it in `vllm serve`. Only the engine, which knows of no parsers but where a grammar begins after
thoughts, is shared (`reasoners.py` tells it which thoughts). Paths without such a prefix are those of the flags given.
"""

# Runs in vLLM's environment, not in ours.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import uvloop
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.launcher import serve_http, setup_server
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.common.cli_args import (
        make_arg_parser,
        validate_api_server_args,
        validate_parsed_serve_args,
    )
    from vllm.entrypoints.common.startup import cli_env_setup
except ModuleNotFoundError:  # vLLM 0.32
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.launchers.launcher import validate_api_server_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup

HERE = Path(__file__).parent
PREFIX = 3  # segments: "with", tool parser, reasoning parser


def parsed(argv: list[str]) -> Namespace:
    args: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    validate_parsed_serve_args(args)
    if args.model_tag is not None:
        args.model = args.model_tag
    return args


def flags(tool: str, reasoning: str) -> list[str]:
    """The command line that a prefix stands for."""
    given = []
    if tool != "none":
        given += ["--enable-auto-tool-choice", "--tool-call-parser", tool]
    if reasoning != "none":
        thoughts = json.dumps({"reasoner": reasoning})
        given += ["--reasoning-parser", reasoning, "--default-chat-template-kwargs", thoughts]
    return given


class FrontEnds:
    """The ASGI app: sends a request to the front end of its prefix, made when it is first asked for."""

    def __init__(self, engine: Any, argv: list[str], base: Any, tasks: Any) -> None:
        self.engine, self.argv, self.base, self.tasks = engine, argv, base, tasks
        self.apps: dict[tuple[str, str], asyncio.Task[Any]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        segments = scope["path"].split("/")[1:] if scope["type"] == "http" else []
        if len(segments) <= PREFIX or segments[0] != "with":
            await self.base(scope, receive, send)
            return
        prefix = (segments[1], segments[2])
        if prefix not in self.apps:
            self.apps[prefix] = asyncio.create_task(self._made(prefix))
        app = await self.apps[prefix]
        path = "/" + "/".join(segments[PREFIX:])
        await app({**scope, "app": app, "path": path, "raw_path": path.encode()}, receive, send)

    async def _made(self, prefix: tuple[str, str]) -> Any:
        args = parsed([*self.argv, *flags(*prefix)])
        if prefix[1] == "none":
            args.reasoning_parser = ""
        args.structured_outputs_config.reasoning_parser = args.reasoning_parser  # as the engine's set-up does it
        validate_api_server_args(args)
        app = build_app(args, self.tasks, self.engine.model_config)
        await init_app_state(self.engine, app.state, args, self.tasks)
        return app


async def serve(argv: list[str]) -> None:
    args = parsed([*argv, "--reasoning-parser", "as_told", "--reasoning-parser-plugin", str(HERE / "reasoners.py")])
    _, sock = setup_server(args, reuse_port=False)
    async with build_async_engine_client(args) as engine:
        tasks = await engine.get_supported_tasks()
        base = build_app(args, tasks, engine.model_config)
        await init_app_state(engine, base.state, args, tasks)
        front: Any = FrontEnds(engine, argv, base, tasks)
        front.state, front.routes = base.state, base.routes  # what serve_http looks at
        ended = await serve_http(front, sock=sock, host=args.host, port=args.port, log_level="warning")
    await ended
    sock.close()


if __name__ == "__main__":
    cli_env_setup()
    uvloop.run(serve(sys.argv[1:]))
