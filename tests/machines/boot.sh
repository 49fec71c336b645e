#!/bin/bash
# Boots the machines, gives ops a key that both Sparks know, and puts fake checkpoints there. `boot.sh down` ends everything.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
if [ "${1-}" = down ]; then
  set +e # each of them, whatever state the others are in
  for m in gw spark1 spark2; do halt $m; done
  net_down
  exit 0
fi
net_up
for m in gw spark1 spark2; do boot $m & done
wait
for m in gw spark1 spark2; do up $m; done
inside gw sh -c 'echo "ops ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/ops; chmod 440 /etc/sudoers.d/ops; git config --system --replace-all safe.directory /opt/spark-gateway'
inside gw su - ops -c 'mkdir -p -m 700 .ssh; [ -e .ssh/id_ed25519 ] || ssh-keygen -q -t ed25519 -N "" -f .ssh/id_ed25519'
ssh=$MACHINES/m/gw/$HOMES/ops/.ssh
cp "$ssh/id_ed25519.pub" "$MACHINES/ops.pub"
for s in spark1 spark2; do
  theirs=$MACHINES/m/$s/$HOMES/ops/.ssh
  mkdir -p "$theirs"
  cp "$MACHINES/ops.pub" "$theirs/authorized_keys"
  chown -R --reference="$MACHINES/m/$s/$HOMES/ops" "$theirs"
  chmod 700 "$theirs"
  chmod 600 "$theirs/authorized_keys"
  for n in "$s" "$NET.${IP[$s]}"; do echo "$n $(cut -d' ' -f1,2 "$MACHINES/m/$s/etc/ssh/ssh_host_ed25519_key.pub")"; done
done >"$ssh/known_hosts"
chown --reference="$MACHINES/m/gw/$HOMES/ops" "$ssh/known_hosts"
# a login is refused until the machine has booted to its end
for s in spark1 spark2; do
  for n in $(seq 120); do
    ! inside gw su - ops -c "ssh -o BatchMode=yes ops@$s true" 2>/dev/null || break
    [ "$n" != 120 ] || { echo "nobody can log in at $s" >&2; exit 1; }
    sleep 0.5
  done
done
files() { # DIR: a checkpoint, whole: an index, its parts, config and tokenizer
  mkdir -p "$1"
  echo '{"model_type":"qwen3"}' >"$1/config.json"
  echo '{}' >"$1/tokenizer.json"
  echo '{}' >"$1/tokenizer_config.json"
  echo '{"metadata":{"total_size":2048},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}' >"$1/model.safetensors.index.json"
  head -c 1024 /dev/zero >"$1/model-00001-of-00002.safetensors"
  head -c 1024 /dev/zero >"$1/model-00002-of-00002.safetensors"
}
weights() { # NODE ORG/NAME
  local d=$MACHINES/m/$1/srv/models/hub/models--${2/\//--}
  mkdir -p "$d/refs" "$d/blobs"
  echo -n abc >"$d/refs/main"
  files "$d/snapshots/abc"
}
weights spark1 RedHatAI/Qwen3.6-35B-A3B-NVFP4
weights spark1 Qwen/Qwen3-4B-Instruct-2507
weights spark2 google/gemma-4-26B-A4B-it
weights spark2 Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8
files "$MACHINES/m/spark1/srv/models/DeepSeek-V4-Flash"
files "$MACHINES/m/spark2/srv/models/DeepSeek-V4-Flash"
