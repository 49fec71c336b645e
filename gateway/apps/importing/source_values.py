"""Values of the source as routes.yaml writes them: API keys and other secrets, request parameters, URLs. Values that
cannot be kept are noted."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from gateway.apps.importing.draft import Draft, Notes, too_large
from gateway.apps.importing.source import each_text, text_of
from gateway.config.problems import Path, Report
from gateway.config.urls import check_url, is_private_host

# -- API keys ---------------------------------------------------------------------------------------------------------
# A reference stays a reference; a key that is written out is never copied.

_ENVIRON = re.compile(r"os\.environ/\s*([A-Za-z_]\w*)", re.ASCII)
_VARIABLE = re.compile(r"\$\{(?:env\.)?([A-Za-z_]\w*)(:-[^{}]*)?\}", re.ASCII)
# What people write as a key where the client library requires one and the server does not.
_NO_KEY = re.compile(
    r"(sk-)?(none|null|empty|dummy|fake|fake-key|no-?key(-(required|needed))?|not-?(needed|required|used)|unused|x+"
    r"|ollama|lm-?studio|llama-?cpp|vllm|local|anything|placeholder|na|n/a|1234|your[-_ ].*|<.*>)",
    re.IGNORECASE,
)


def reference(text: str) -> str | None:
    """`os.environ/X`, `${X}`, `${env.X}` and `${X:-default}` as `${X}`; None if `text` is no reference. The default is
    dropped, because it may be a key."""
    if found := _ENVIRON.fullmatch(text):
        return f"${{{found[1]}}}"
    found = _VARIABLE.fullmatch(text)
    return f"${{{found[1]}}}" if found else None


def is_no_key(text: str) -> bool:
    """Is it a placeholder, such as `none` or `sk-1234`?"""
    return _NO_KEY.fullmatch(text.strip()) is not None


def variable_name(text: str) -> str:
    """The name of an environment variable made of any text: `qwen3.6-35b` -> `QWEN3_6_35B`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper() or "KEY"
    return f"_{name}" if name[0].isdigit() else name


# -- request parameters -----------------------------------------------------------------------------------------------

_OURS = ("model", "messages", "prompt", "input", "stream")  # set by the client


def request_params(values: dict[str, Any], path: Path, notes: Notes) -> dict[str, Any]:
    """Those of `values` that the `params` of an alias can hold; the others are noted at `path`."""
    found = {}
    for key, value in values.items():
        if key in _OURS:
            notes.left_out((*path, key), f"'{key}' cannot be filled in", "the client sets it")
        elif not _is_json(key, value):
            notes.left_out((*path, key), "a value that no request can hold")
        else:
            found[key] = literal(value)
    return found


def literal(value: Any) -> Any:
    """The value with `${` escaped: routes.yaml would read a variable, the source does not."""
    return each_text(value, lambda text: text.replace("${", "$${"))


def _is_json(key: Any, value: Any) -> bool:
    """Can a request hold it? Names must not be blank, numbers must be finite."""
    if not str(key).strip():
        return False
    if isinstance(value, dict):
        return all(_is_json(inner_key, inner) for inner_key, inner in value.items())
    if isinstance(value, list):
        return all(_is_json("item", inner) for inner in value)
    return not isinstance(value, float) or math.isfinite(value)


# -- URLs -------------------------------------------------------------------------------------------------------------

_ENDPOINT = re.compile(r"/(chat/completions|completions|embeddings|models|api/(chat|generate|embed))/?$")


def url_of(value: Any, path: Path, notes: Notes) -> str | None:
    """The base URL in `value`, `${X}` for a reference; None without one that can be used (noted)."""
    given = text_of(value)
    if given is None:
        return None
    if (found := reference(given)) is not None:
        notes.to_do(path, f"the address is in the variable {found}", "set it to an http:// URL")
        return found
    if "://" not in given:
        given = f"http://{given}"
    report = Report(notes.file)
    url = check_url(_ENDPOINT.sub("", given), path, report)
    if url is None:
        problem = report.errors[0]
        notes.left_out(path, problem.message, problem.hint)
    return url


def mark_cloud(keys: dict[str, Any], path: Path, notes: Notes, *, known: bool) -> None:
    """Set `cloud: true` where the URL leads out of the LAN, with a note to check it unless the cloud is `known`. A URL
    of a variable (`${X}`) does not: loading the file checks it then."""
    url = keys.get("url")
    if url is None or "${" in url or keys.get("engine") == "litellm":
        return
    host = urlsplit(url).hostname or ""
    if is_private_host(host):
        return
    keys["cloud"] = True
    if not known:
        message = f"'{host}' is not a private address, so it is taken for a cloud"
        notes.to_do(path, message, "write cloud: false under the backend if prompts stay inside")


def host_words(url: str | None) -> tuple[str, ...]:
    """Short words that distinguish two URLs: the host (of an address its last number), and the host with the port."""
    if not url or "${" in url:
        return ()
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        word = re.split(r"[.:]", str(ipaddress.ip_address(host)))[-1]
    except ValueError:
        word = host.partition(".")[0]
    return (word, f"{word}-{parts.port}") if parts.port else (word,)


_NAMED = re.compile(r"SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|_KEY$", re.IGNORECASE)
# A token that opens something: neither MAX_TOKENS, TOKENIZER nor TIKTOKEN_DIR, nor a number or a path.
_TOKEN = re.compile(r"(?<!TIK)(?<!MAX_)TOKEN(?!S|IZ)", re.IGNORECASE)
_NO_TOKEN = re.compile(r"-?[\d.,_]+[kKmM]?|[~.]{0,2}/[\w./@:~-]*", re.ASCII)
_LOOKS = re.compile(
    r"\b(?:hf_\w{6,}|sk-[\w-]{8,}|nvapi-[\w-]{8,}|gh[pousr]_\w{16,}|eyJ[\w-]{10,}\.[\w.-]+)|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",
    re.ASCII,
)
_REFERENCE = re.compile(r"\$\{\w+(:?[-=?+][^{}]*)?\}|\$\w+", re.ASCII)
_FLAGS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
_SWITCHED = frozenset(("", "0", "1", "true", "false"))  # HF_HUB_DISABLE_IMPLICIT_TOKEN=1 is no secret
_MOST = 200  # secrets of one source
_SHORTEST = 6  # characters of a value that is looked for everywhere


def _is_secret_name(name: str, text: str) -> bool:
    """Whether the name of a variable says that its value is a secret."""
    if _NAMED.search(name):
        return True
    return _TOKEN.search(name) is not None and _NO_TOKEN.fullmatch(text) is None


class Secrets:
    """Replaces the keys and other secrets of a source by `${NAME}`, and notes each; equal ones get the same name."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._names: dict[str, str] = {}  # a written secret -> the variable that stands for it

    def value(self, name: str, text: str, path: Path) -> str:
        """The value of a variable: itself, unless the name or the value is that of a secret."""
        reference = _REFERENCE.fullmatch(text)
        if reference is not None:
            return text if "-" not in text and "=" not in text else f"${{{name}}}"
        if text.lower() not in _SWITCHED and (_is_secret_name(name, text) or _LOOKS.search(text)):
            return self._replaced(text, name, path)
        return self.mask(text)

    def words(self, given: Sequence[str], path: Path) -> list[str]:
        """The words of a command without control characters; the values of `--api-key` and `--hf-token`, and whatever
        looks like a key, are replaced."""
        words = ["".join(c if c.isprintable() or c == "\n" else " " for c in word) for word in given]
        found: list[str] = []
        flag = ""
        for word in words:
            name, equals, value = word.partition("=")
            if flag and not word.startswith("-") and word not in ("$@", "$*"):
                found.append(self.value(_FLAGS[flag], word, path))
            elif name in _FLAGS and equals:
                found.append(f"{name}={self.value(_FLAGS[name], value, path)}")
            elif match := _LOOKS.search(word):
                found.append(word.replace(match[0], self._replaced(match[0], "HF_TOKEN", path)))
            else:
                found.append(self.mask(word))
            if word.startswith("-"):
                flag = word if word in _FLAGS else ""
        return found

    def key(self, value: str, path: Path, name: str) -> str:
        """`value` if it is a reference, else `${name}` (or `${name_2}`, ...) with a note to set the variable."""
        if (found := reference(value)) is not None:
            return found
        chosen = self._variable_for(value, name)
        message = f"the key itself is not copied: routes.yaml says ${{{chosen}}}"
        self._notes.to_do(path, message, f"put {chosen}=... into .env")
        return f"${{{chosen}}}"

    def _replaced(self, text: str, name: str, path: Path) -> str:
        if text not in self._names:
            if len(self._names) >= _MOST:
                raise too_large(self._notes.file, f"it has more than {_MOST} secrets", self._notes.line_of(path))
            chosen = self._variable_for(text, name)
            hint = f"set {chosen} where the engine is started"
            self._notes.to_do(path, f"the value of {name} is not copied: it is ${{{chosen}}} here", hint)
        return f"${{{self._names[text]}}}"

    def _variable_for(self, secret: str, name: str) -> str:
        """The variable that stands for the secret: `name`, or `name_2` where another one has that."""
        if secret not in self._names:
            used = set(self._names.values())
            numbered = (f"{name}_{number}" for number in range(2, len(used) + 3))
            self._names[secret] = next(one for one in (name, *numbered) if one not in used)
        return self._names[secret]

    def mask(self, text: str) -> str:
        """`text` without any secret that was met so far, and without anything that looks like one."""
        self._notes.spend(len(self._names))
        for secret in sorted((s for s in self._names if len(s) >= _SHORTEST), key=len, reverse=True):
            text = text.replace(secret, f"${{{self._names[secret]}}}")
        return _LOOKS.sub("***", text)

    def clean(self, draft: Draft) -> None:
        """The last look over everything that will be written."""
        for section in (draft.nodes, draft.backends, draft.aliases):
            for entry in section.values():
                entry.keys = each_text(entry.keys, self.mask)
                entry.comment = [self.mask(line) for line in entry.comment]
