"""The subject of the rules: one backend as it is launched, or as it is declared, with its rows of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

from gateway.apps.control.memory.model_catalog import host_path
from gateway.apps.control.memory.model_files import ModelFiles
from gateway.apps.fleet.lint.catalog import Catalog, FamilyRow, Image, Version, version_of
from gateway.apps.fleet.lint.rust_front_end import chooses_rust
from gateway.config.problems import Path, dotted
from gateway.config.snapshot import Backend, Launch, Snapshot
from gateway.domain.engine_traits import traits_of
from gateway.launch.command import ServeCommand, with_changes
from gateway.launch.docker import DockerRun
from gateway.launch.families import ModelFamily as NamedFamily
from gateway.launch.families import family_of, name_in_cache
from gateway.printable import visible

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule has to say. `fix`: text to paste, or the words to take out. `source`: who reported it, in words.
    `where`: path below the subject's backend; None = that of its command; once the findings are put together, the path
    in the file. `line` counts from 1, None if not known."""

    severity: Severity
    message: str
    fix: str
    source: str = ""
    where: Path | None = None
    rule: str = ""
    line: int | None = None

    @property
    def path(self) -> str:
        return dotted(self.where or ())

    def as_json(self) -> dict[str, Any]:
        """{severity, rule, path, line, message, fix}; the message ends with the source."""
        message = f"{self.message} ({self.source})" if self.source else self.message
        told = {"severity": self.severity, "rule": self.rule, "path": self.path, "line": self.line}
        return {**told, "message": message, "fix": self.fix}

    def __str__(self) -> str:
        """Two or three lines without control characters, whatever the file holds."""
        where = self.path if self.line is None else f"line {self.line}  {self.path}"
        lines = [f"{self.severity}  {where}  [{self.rule}]", f"    {self.message}"]
        lines += [f"    fix: {self.fix}"] if self.fix else []
        lines += [f"    source: {self.source}"] if self.source else []
        return "\n".join(visible(line) for line in lines)


COMMAND: Path = ("launch", "command")
# flag -> the key of a backend that declares the same where there is no launch block
DECLARED_BY: Mapping[str, str] = {
    "tool-call-parser": "tool_parser",
    "enable-auto-tool-choice": "auto_tools",
    "reasoning-parser": "reasoning_parser",
    "max-model-len": "context",
    "max-num-seqs": "slots",
}
_ACTIVE = re.compile(r"(?<![a-z])a\d+(\.\d+)?b(?![a-z])")  # A3B: experts, three billion active parameters


@dataclass(frozen=True)
class Subject:
    """One backend, or one profile of it, in front of the rules.

    `launched`: it has a launch command; otherwise `flags` come from its keys. `whole`: all flags are known, an absent
    one has its default. `names`: every name of the model. `facts`: the row of the catalogue, `family` the gateway's own
    table; `architecture`: the class in the model's config.json, None where that is not here. `version` of vLLM, None if
    not known. `docker`: its flags."""

    backend: Backend
    catalog: Catalog
    command: ServeCommand = field(default_factory=ServeCommand)
    flags: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    docker: DockerRun = field(default_factory=DockerRun)
    image: str | None = None
    image_facts: Image | None = None
    names: tuple[str, ...] = ()
    facts: FamilyRow = field(default_factory=lambda: FamilyRow(match=""))
    family: NamedFamily | None = None
    architecture: str | None = None
    launched: bool = False
    profile: str | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Flag -> the size of each kind of parallelism."""
        names = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
        return {name: self.number(name) or 1 for name in names}

    @property
    def ranks(self) -> int:
        """The GPUs that the engine asks for: one a Spark."""
        return prod(self.sizes.values())

    @property
    def launch(self) -> Launch:
        return self.backend.launch or Launch()

    @property
    def place(self) -> Path:
        """Path of the command below the backend."""
        if self.profile is not None:
            return ("profiles", self.profile)
        return COMMAND if self.launched else ()

    def at(self, flag: str) -> Path:
        """Path of a flag below the backend: the command, or the key that declares it."""
        declared = DECLARED_BY.get(flag)
        return self.place if self.launched else (declared,) if declared else ()

    @property
    def model(self) -> str:
        return self.names[0] if self.names else "the model"

    @property
    def named(self) -> str:
        """The model in a sentence."""
        return self.family.name if self.family is not None else self.model.rsplit("/", 1)[-1]

    @property
    def version(self) -> Version | None:
        if self.image_facts is not None and self.image_facts.vllm is not None:
            return version_of(self.image_facts.vllm)
        tag = (self.image or "").partition("@")[0].rpartition(":")[2]
        return version_of(tag) if re.match(r"v\d", tag) else None

    @property
    def is_stock(self) -> bool:
        """Whether it is vLLM as it is released, as far as the file says: no image, or one whose row says so."""
        return self.image is None or (self.image_facts is not None and self.image_facts.stock)

    def claim(self, versions: tuple[str, ...]) -> Severity:
        """The severity of a fact that holds for these `versions` (`Row.versions`): an error only where it is known to
        hold for this vLLM."""
        first, last = [*map(version_of, versions), None, None][:2]
        have, open_ended = self.version, last is None
        known = open_ended if have is None else (first or have) <= have <= (last or have)
        return "error" if known and self.is_stock and (open_ended or not self.is_moving) else "warning"

    @property
    def is_moving(self) -> bool:
        """Whether its tag points elsewhere some day, so that its version is the least that it has."""
        facts = self.image_facts
        return facts is not None and facts.moving and "@" not in (self.image or "")

    def older_than(self, version: str) -> bool:
        """Whether its vLLM is certainly older. False where its version is not known."""
        wanted, have = version_of(version), self.version
        return have is not None and wanted is not None and have < wanted and not self.is_moving

    def at_least(self, version: str) -> bool:
        """Whether its vLLM is certainly that version or a later one."""
        wanted, have = version_of(version), self.version
        return have is not None and wanted is not None and have >= wanted

    # -- the model ----------------------------------------------------------------------------------------------------

    @property
    def says(self) -> str:
        """All names of the model in small letters, to look for words such as nvfp4."""
        return " ".join(self.names).lower()

    @property
    def is_moe(self) -> bool:
        return self.facts.moe if self.facts.moe is not None else bool(_ACTIVE.search(self.says))

    @property
    def is_nvfp4(self) -> bool:
        return "nvfp4" in self.says

    @property
    def chats(self) -> bool:
        """Whether it is a model for chats; not an embedding, a reranker or a speech model."""
        pooling = self.flags.get("runner") == "pooling" or self.flags.get("task") in ("embed", "score", "classify")
        return not pooling and not re.search(r"embed|rerank|whisper|[-_](asr|tts|reward)\b", self.says)

    # -- what is written ----------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether all flags of the engine are known, so that an absent one has its default."""
        own = self.image_facts is not None and self.image_facts.entrypoint == "own"
        return self.launched and self.command.is_vllm and not own

    def text(self, flag: str) -> str | None:
        """The value of a flag as text; None if not there, or a reference such as ${NAME}."""
        value = self.flags.get(flag)
        return None if value is None or isinstance(value, bool) or "$" in str(value) else str(value)

    def number(self, flag: str) -> int | None:
        value = self.flags.get(flag)
        return None if isinstance(value, bool) or not isinstance(value, int) else value

    @property
    def speculative(self) -> Mapping[str, Any]:
        value = self.flags.get("speculative-config")
        return value if isinstance(value, Mapping) else {}

    @property
    def method(self) -> str | None:
        found = self.speculative.get("method")
        return found if isinstance(found, str) else None

    @property
    def tools(self) -> str | None:
        """The tool parser it is started with, or declared to have; None if none, or not known."""
        return self.text("tool-call-parser")

    @property
    def nodes(self) -> int:
        """On how many machines it runs."""
        return max(len(self.backend.nodes), self.number("nnodes") or 1)

    @property
    def rust_front_end(self) -> bool:
        """Is it a vLLM that is started with its Rust front end?"""
        return self.launched and self.command.is_vllm and chooses_rust(self.env)

    @property
    def on_host_network(self) -> bool:
        return self.image is None or self.docker.network == "host"


Rule = Callable[[Subject], Iterator[Finding]]


def subjects(snapshot: Snapshot, catalog: Catalog, files: Mapping[str, ModelFiles] | None = None) -> Iterator[Subject]:
    """Every backend in the LAN, and each profile of one behind it."""
    known = files or {}
    for backend in snapshot.backends.values():
        if backend.cloud or not traits_of(backend).endpoints:
            continue
        if backend.launch is None or not backend.launch.parsed.words:
            declared = {flag: getattr(backend, key) for flag, key in DECLARED_BY.items()}
            flags = {flag: value for flag, value in declared.items() if value not in (None, "none")}
            names = (backend.model,) if backend.model else ()
            yield _known(Subject(backend, catalog, flags=flags, names=names))
        if backend.launch is None or not backend.launch.starts:
            continue
        architecture = known[backend.name].architecture if backend.name in known else None
        yield _launched(backend, backend.launch.parsed, catalog, architecture)
        for name, changes in backend.profiles.items():
            changed = with_changes(backend.launch.parsed, changes)
            yield replace(_launched(backend, changed, catalog, architecture), profile=name)


def _launched(backend: Backend, command: ServeCommand, catalog: Catalog, architecture: str | None) -> Subject:
    launch = backend.launch
    assert launch is not None
    env, image = launch.variables, _tagged(launch.image)
    return _known(
        Subject(
            backend,
            catalog,
            command=command,
            flags=command.flags,
            env=env,
            docker=launch.container,
            image=image,
            image_facts=catalog.image(image) if image else None,
            names=_names(backend, launch, command, env),
            architecture=architecture,
            launched=True,
        )
    )


def _known(subject: Subject) -> Subject:
    facts = subject.catalog.family(subject.names)
    if facts is None and subject.architecture is not None:
        facts = subject.catalog.of_class(subject.architecture)
    family = next((found for name in subject.names if (found := family_of(name)) is not None), None)
    return replace(subject, facts=facts or FamilyRow(match=""), family=family)


def _names(backend: Backend, launch: Launch, command: ServeCommand, env: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the model, the most telling first: the model itself, the folder on the host that is mounted at its path,
    the tokenizer, served names, what routes.yaml calls it."""
    found = [command.model or env.get("MODEL_PATH") or ""]
    found.append(host_path(found[0], launch.mounts))
    served = command.flags.get("served-model-name")
    found += [str(command.flags.get("tokenizer") or ""), env.get("SERVED_MODEL_NAME", "")]
    found += [str(name) for name in served] if isinstance(served, list) else [str(served or "")]
    found.append(backend.model or "")
    return tuple(dict.fromkeys(name_in_cache(name) for name in found if name and "$" not in name))


def _tagged(image: str | None) -> str | None:
    """The image with its tag: without one it is `latest`; a digest stays."""
    if not image or "@" in image or "$" in image or ":" in image.rsplit("/", 1)[-1]:
        return image or None
    return f"{image}:latest"
