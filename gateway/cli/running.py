"""The gateway that runs: where a command finds it, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from gateway.cli.options import config_option, end_with, json_option, key_option, server_url, snapshot_served
from gateway.printable import visible, visible_all

if TYPE_CHECKING:
    import httpx

    from gateway.config.snapshot import Server

F = TypeVar("F", bound=Callable[..., Any])

HEALTH_WAIT = 5.0  # seconds for the answer of /health
HEALTH_MOST = 64 * 1024  # bytes of it
WAIT = 60.0  # seconds for any other answer: a plan reads files of models
ANSWER_MOST = 16 * 1024 * 1024  # bytes of an answer


def asks_gateway(
    whose: str, made: Callable[[str, str | None], GatewayClient] | None = None, *failures: type[Exception]
) -> Callable[[F], F]:
    """`--config`, `--json`, `--gateway` and `--key`, given to the command as `asking` (`made` of its URL and key) and
    `as_json`. It exits 1 where the gateway cannot be asked, refuses or answers as none does, and after one of the
    `failures`. `whose`: the words of the key's help."""

    ends: tuple[type[Exception], ...] = (GatewayUnreachable, GatewayRefusal, *failures)

    def decorated(command: F) -> F:
        @config_option
        @json_option
        @click.option("--gateway", "at", metavar="URL", help="Where the gateway is; default `server.listen`.")
        @key_option(whose)
        @wraps(command)
        def asked(config: Path, as_json: bool, at: str | None, key: str | None, **own: Any) -> Any:
            asking = (made or GatewayClient)(url_of(config, at, as_json=as_json), key)
            try:
                return command(asking=asking, as_json=as_json, **own)
            except ends as error:
                end_with(error, as_json=as_json)
            except (KeyError, TypeError, ValueError):
                end_with(ValueError(f"what listens at {asking.url} does not answer as a gateway"), as_json=as_json)

        return cast("F", asked)

    return decorated


def url_of(config: Path, at: str | None, *, as_json: bool) -> str:
    """The URL of the gateway: `at`, else that of the file."""
    if at is not None:
        return server_url(at).removesuffix("/v1")
    return address(snapshot_served(config, as_json=as_json).server)


def address(server: Server) -> str:
    """The URL of the gateway of this file, as seen from its own machine. Where it has TLS, a further address without is
    preferred: the certificate is for a name of the machine."""
    if server.tls is not None and server.also_listen:
        host, port = server.also_listen[0]
        return address(replace(server, host=host, port=port, tls=None))
    scheme = "http" if server.tls is None else "https"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    return f"{scheme}://[{host}]:{server.port}" if ":" in host else f"{scheme}://{host}:{server.port}"


async def is_running(url: str) -> bool:
    """Does a gateway answer at `url`? Raises GatewayUnreachable when something else does."""
    import httpx

    from gateway.transport.bounded import async_client, fetch

    try:
        async with async_client(HEALTH_WAIT) as client:
            answer = await fetch(client, "GET", url + "/health", most=HEALTH_MOST, seconds=HEALTH_WAIT)
            if answer.status_code == 200 and answer.json() == {"status": "ok"}:
                return True
    except httpx.ConnectError:
        return False
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
        pass
    raise GatewayUnreachable(f"what listens at {url} does not answer as a gateway")


class GatewayUnreachable(Exception):
    """The gateway did not answer; the text says why."""


class GatewayRefusal(Exception):
    """The gateway refused, with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GatewayClient:
    """Asks one gateway; all that it answers is safe to print. Raises GatewayUnreachable and GatewayRefusal."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path)

    def delete(self, path: str) -> dict[str, Any]:
        return self._ask("DELETE", path)

    def post(self, path: str, body: Mapping[str, Any], wait: float = WAIT) -> dict[str, Any]:
        return self._ask("POST", path, wait, json=dict(body))

    def lines(self, path: str) -> Iterator[str]:
        """The lines of an answer that is text, as they come."""
        with self._stream(path) as answer:
            yield from map(visible, answer.iter_lines())

    @contextmanager
    def _stream(self, path: str) -> Iterator[httpx.Response]:
        from gateway.transport.bounded import client, identity

        with (
            self._reaching(),
            client(WAIT, base_url=self.url, headers=self._headers) as asking,
            asking.stream("GET", path, headers=identity()) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                raise GatewayRefusal(answer.status_code, _message(_json_of(answer), answer.status_code, self.url))
            yield answer

    def _ask(self, method: str, path: str, wait: float = WAIT, **options: Any) -> dict[str, Any]:
        from gateway.transport.bounded import client, fetch_now

        with self._reaching(), client(wait, base_url=self.url, headers=self._headers) as asking:
            answer = fetch_now(asking, method, path, most=ANSWER_MOST, seconds=wait, **options)
        found = _json_of(answer)
        if answer.status_code in (200, 202) and isinstance(found, dict):
            return dict(visible_lines_of(found))
        raise GatewayRefusal(answer.status_code, _message(found, answer.status_code, self.url))

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        import httpx

        from gateway.transport.bounded import Oversized, Undecodable

        try:
            yield
        except (Oversized, Undecodable) as error:  # it is there: asking again is of no use
            raise GatewayRefusal(502, f"the gateway at {self.url}: {visible(str(error))}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = visible(str(error)) or type(error).__name__
            raise GatewayUnreachable(f"the gateway at {self.url} cannot be reached: {why}") from None


def _json_of(answer: httpx.Response) -> Any:
    """What the answer holds; None where it is no JSON."""
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None


def visible_lines_of(value: Any) -> Any:
    """Decoded JSON that is safe to print: texts of several lines keep their line ends."""
    if isinstance(value, str):
        return "\n".join(visible(line) for line in value.split("\n"))
    if isinstance(value, dict):
        return {visible(str(key)): visible_lines_of(inner) for key, inner in value.items()}
    return [visible_lines_of(inner) for inner in value] if isinstance(value, list) else value


def _message(found: Any, status: int, url: str) -> str:
    try:
        message = str(visible_all(found["error"]["message"]))
    except (KeyError, TypeError):
        return f"what listens at {url} does not answer as a gateway" + ("" if status == 200 else f" ({status})")
    return f"{message} (--key KEY, or GATEWAY_KEY)" if status in (401, 403) else message
