#!/bin/bash
# `make test-machines`: on Debian as root, installs what the scene needs, and runs the tests. MACHINES: where the trees are kept.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  wanted=""
  for tool in dockerd:docker.io docker-compose:docker-compose iptables:iptables debootstrap:debootstrap systemd-nspawn:systemd-container ip:iproute2; do
    command -v "${tool%%:*}" >/dev/null || wanted="$wanted ${tool#*:}"
  done
  # shellcheck disable=SC2086  # a list of package names
  [ -z "$wanted" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $wanted; } >/dev/null || true
fi
exec "${BIN:-.venv/bin}/python" -m pytest -q -p no:xdist -o norecursedirs=.hypothesis "${@:-tests/machines}"
