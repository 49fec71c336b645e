# Functions of the scene, to be sourced. MACHINES: where trees, images and logs are.
# Addresses: 10.77.0.0/24 on the bridge br77 (gw .2, spark1 .11, spark2 .12), 10.77.0.128/26 on dock77, 10.77.1.0/24 for compose.
# shellcheck shell=bash disable=SC2034  # what is set here is used where this is sourced
MACHINES=${MACHINES:-/var/tmp/spark-gateway-machines}
HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
SOURCE=$(cd -- "$HERE/../.." && pwd)
HOSTDOCK=unix://$MACHINES/docker.sock
BASE=local/python:machines
IMAGE=spark-gateway:machines
HOMES=home # of the users of a tree
NET=10.77.0
declare -A IP=([gw]=2 [spark1]=11 [spark2]=12)

net_up() {
  ip link show br77 >/dev/null 2>&1 || { ip link add br77 type bridge; ip addr add $NET.1/24 dev br77; ip link set br77 up; }
  # docker drops what it does not know
  iptables -C FORWARD -i br77 -o br77 -j ACCEPT 2>/dev/null || iptables -I FORWARD -i br77 -o br77 -j ACCEPT
}
net_down() { ip link del br77 2>/dev/null; iptables -D FORWARD -i br77 -o br77 -j ACCEPT 2>/dev/null; true; }

# boot NAME: a machine with its own systemd; its end of the network on the host is vb-NAME
boot() {
  up "$1" && return
  setsid "$HERE/machine.sh" "$1" </dev/null >>"$MACHINES/m/$1.log" 2>&1 &
  echo $! >"$MACHINES/m/$1.pid"
  wait_up "$1"
}
wait_up() {
  for _ in $(seq 240); do
    case $(inside "$1" systemctl is-system-running 2>/dev/null || true) in running | degraded) return 0 ;; esac
    sleep 0.5
  done
  echo "$1 does not come up" >&2
  return 1
}
# the machine's process 1, as a number of the host; nothing when it is off
leader() {
  local w t s l
  w=$(cat "$MACHINES/m/$1.pid" 2>/dev/null) && [ -n "$w" ] || return 1
  t=$(pgrep -P "$w" -x timeout | head -1)
  [ -n "$t" ] || return 1
  s=$(pgrep -P "$t" -x systemd-nspawn | head -1)
  [ -n "$s" ] || return 1
  l=$(pgrep -P "$s" | head -1)
  [ -n "$l" ] && [ "$l" -gt 1 ] || return 1
  [ "$(cat "/proc/$l/comm")" = systemd ] || return 1
  echo "$l"
}
up() { [ -n "$(leader "$1" 2>/dev/null)" ]; }
# inside NAME COMMAND...: as root at the machine's console
inside() {
  local n=$1 l
  shift
  l=$(leader "$n") && [ -n "$l" ] || return 1
  (cd / && env -u DOCKER_HOST nsenter -t "$l" -m -u -i -n -p -C -- "$@")
}
off() { # power cut: nobody hears of it
  ip link set "vb-$1" down 2>/dev/null
  local w l
  w=$(cat "$MACHINES/m/$1.pid" 2>/dev/null) || return 0
  l=$(leader "$1" || true)
  echo off >"$MACHINES/m/$1.off"
  [ -n "$l" ] && kill -9 "$l" 2>/dev/null
  for _ in $(seq 50); do kill -0 "$w" 2>/dev/null || break; sleep 0.2; done
  rm -f "$MACHINES/m/$1.pid"
  ip link del "vb-$1" 2>/dev/null || true
}
halt() {
  up "$1" || { off "$1"; return 0; }
  echo off >"$MACHINES/m/$1.off"
  inside "$1" systemctl poweroff 2>/dev/null
  for _ in $(seq 40); do up "$1" || break; sleep 0.5; done
  off "$1"
}
