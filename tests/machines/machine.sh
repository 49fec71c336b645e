#!/bin/bash
# One machine, until it is switched off: nspawn ends with 133 when the machine reboots. `timeout` bounds a forgotten one.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
rm -f "$MACHINES/m/$1.off"
while true; do
  timeout "${LIFE:-7200}" systemd-nspawn -q -D "$MACHINES/m/$1" -M "$1" -b --register=no --keep-unit --network-bridge=br77 \
    --bind="$MACHINES/gwtree:/opt/spark-gateway" \
    --capability=all --system-call-filter='add_key keyctl bpf @privileged'
  rc=$?
  [ $rc = 133 ] && [ ! -e "$MACHINES/m/$1.off" ] || exit $rc
  ip link del "vb-$1" 2>/dev/null
done
