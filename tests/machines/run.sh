#!/bin/bash
# `make test-machines`: on Debian as root, installs what the scene needs, and runs the tests. MACHINES: where the trees are kept.
# With --kept nothing is built that takes long: without the trees of an earlier run it says so and runs nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
machines=${MACHINES:-/var/tmp/spark-gateway-machines}
wait=3600
if [ "${1-}" = --kept ]; then
  shift
  wait=0
  for tree in rootfs base gwtree m/gw m/spark1 m/spark2; do
    [ -e "$machines/$tree/.done" ] || { echo "test-machines: skipped: $machines has no trees yet (make test-machines)"; exit 0; }
  done
fi
mkdir -p "$machines"
exec 9>"$machines/lock"
flock -w $wait 9 || { echo "test-machines: skipped: another run uses $machines"; exit 0; }
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  wanted=""
  for tool in dockerd:docker.io docker-compose:docker-compose iptables:iptables debootstrap:debootstrap systemd-nspawn:systemd-container ip:iproute2; do
    command -v "${tool%%:*}" >/dev/null || wanted="$wanted ${tool#*:}"
  done
  # shellcheck disable=SC2086  # a list of package names
  [ -z "$wanted" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $wanted; } >/dev/null || true
fi
exec "${BIN:-.venv/bin}/python" -m pytest -q -p no:xdist -o norecursedirs=.hypothesis "${@:-tests/machines}"
