#!/bin/bash
# A docker daemon of its own, on the bridge dock77: the machine's own, if there is one, is left alone. `docker_up.sh down` ends it.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
mkdir -p "$MACHINES" && cd "$MACHINES" || exit 1
[ "${1-}" != down ] && docker -H "$HOSTDOCK" info >/dev/null 2>&1 && exit 0
pid=$(cat pid 2>/dev/null)
if [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; then
  kill "$pid" 2>/dev/null
  for _ in $(seq 40); do kill -0 "$pid" 2>/dev/null || break; sleep 0.3; done
fi
rm -f pid
[ "${1-}" = down ] && { ip link del dock77 2>/dev/null; exit 0; }
ip link show dock77 >/dev/null 2>&1 || { ip link add dock77 type bridge; ip addr add $NET.129/26 dev dock77; ip link set dock77 up; }
setsid dockerd --data-root "$MACHINES/data" --exec-root "$MACHINES/exec" -H "$HOSTDOCK" --pidfile "$MACHINES/pid" \
  --bridge dock77 --default-address-pool "base=10.77.1.0/24,size=28" </dev/null >dockerd.log 2>&1 &
for _ in $(seq 100); do docker -H "$HOSTDOCK" info >/dev/null 2>&1 && exit 0; sleep 0.3; done
tail -3 dockerd.log >&2
exit 1
