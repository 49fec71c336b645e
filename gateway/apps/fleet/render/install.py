"""The script that installs the files of a node, and the template of an EnvironmentFile."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.apps.fleet.render.launches import NodeLaunch
from gateway.apps.fleet.render.paths import MARK, SUDOERS, UNITS, RenderedFile, env_path
from gateway.fleet.commands import PROFILES

_HEAD = """\
#!/bin/bash
# {mark} for {node}. Installs the files beside this script on this machine; starts and enables nothing.
set -euo pipefail
((EUID == 0)) || {
  echo "run it as root: sudo $0" >&2
  exit 1
}
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# Whole or not at all, under another name first: what reads these folders leaves out names that end in .new.
put() { # MODE PATH
  if cmp --silent -- "$here$2" "$2"; then
    chmod "$1" "$2"
  else
    install -D --owner=root --group=root --mode="$1" "$here$2" "$2.new"
    mv -f -- "$2.new" "$2"
    echo "installed $2"
  fi
}
"""

_INSTALL = """
# A mistake in one file of sudoers ends sudo for everybody.
put_sudoers() { # MODE PATH
  if command -v visudo >/dev/null; then visudo -cf "$here$2" >/dev/null; fi
  put "$1" "$2"
}

# Holds values of this machine: an existing file stays, and gets the names that it does not have yet.
keep() { # MODE PATH
  local line
  [[ -e $2 ]] || put "$1" "$2"
  [[ -z $(tail -c 1 "$2") ]] || echo >>"$2" # the last line has no end yet
  while read -r line; do
    [[ $line == *=* && $line != '#'* ]] || continue
    grep -q "^${line%%=*}=" "$2" || echo "$line" >>"$2"
    if grep -qx -- "${line%%=*}=" "$2"; then echo "write a value for ${line%%=*} into $2"; fi
  done <"$here$2"
  chmod "$1" "$2"
}

{files}

names=" {names} "
for unit in {units}/spark-*.service; do
  case $names in
    *" ${unit##*/} "*) ;;
    *)
      if grep -qs '^# {mark}' "$unit"; then
        echo "$unit is of an earlier fleet: sudo systemctl disable --now ${unit##*/}; sudo rm $unit"
      fi
      ;;
  esac
done
systemctl daemon-reload
"""


_CREDENTIALS = """
# systemd does not start a unit whose credentials are missing.
for file in {files}; do
  [[ -s $file ]] || {
    echo "$file is missing or empty: first the key and the known hosts (docs/fleet.md), then this" >&2
    exit 1
  }
  chmod 0600 "$file"
done

{puts}
systemctl daemon-reload
echo 'the gateway has them from its next start on: sudo systemctl restart spark-gateway'
"""


def gateway_install_file(files: Iterable[RenderedFile], *credentials: str) -> str:
    """The text of install.sh for the gateway's own machine. `credentials`: files that the drop-ins hand to its unit."""
    puts = "\n".join(f"put {file.mode:04o} {file.path}" for file in files)
    text = _HEAD.replace("{mark}", MARK).replace("{node}", "the gateway's machine")
    return text + _CREDENTIALS.replace("{files}", " ".join(credentials)).replace("{puts}", puts)


def install_file(node: str, files: Iterable[RenderedFile], boot: Iterable[str], profiles_of: str | None = None) -> str:
    """The text of install.sh. `boot`: units that should start with the machine. `profiles_of`: who chooses the profiles
    of backends on this node; None = there are none to choose."""
    files = list(files)
    lines = [f"{_verb(file)} {file.mode:04o} {file.path}" for file in files]
    if profiles_of is not None:
        lines.append(f"install -d --owner={profiles_of} --mode=0755 {PROFILES}")
    names = [file.path.rpartition("/")[2] for file in files if file.path.startswith(UNITS)]
    text = _HEAD + _INSTALL
    for key, value in {
        "{mark}": MARK,
        "{node}": node,
        "{files}": "\n".join(lines),
        "{units}": UNITS,
        "{names}": " ".join(names),
    }.items():
        text = text.replace(key, value)
    units = " ".join(f"{name}.service" for name in boot)
    return f"{text}echo 'to start with the machine: sudo systemctl enable {units}'\n" if units else text


def _verb(file: RenderedFile) -> str:
    return "keep" if file.keep else "put_sudoers" if file.path == SUDOERS else "put"


def lacking(file: RenderedFile, existing: str) -> list[str]:
    """The `NAME=` lines of an EnvironmentFile whose names an existing file does not have."""
    names = {line.partition("=")[0] for line in existing.splitlines()}
    wanted = [line for line in file.text.splitlines() if not line.startswith("#")]
    return [line for line in wanted if line.partition("=")[0] not in names]


def env_template(launch: NodeLaunch) -> str:
    """The lines of an EnvironmentFile, without values."""
    lines = [
        f"# Values of the references in {launch.path}. Read by systemd and by docker: NAME=value, without quotes.",
        f"# {env_path(launch.name)}, mode 0600. It is rendered once and never overwritten.",
        *(f"{name}=" for name in launch.variables),
    ]
    return "\n".join(lines) + "\n"
