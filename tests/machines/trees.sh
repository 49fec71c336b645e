#!/bin/bash
# The trees of the machines: gw (with the gateway as docs/deploy.md installs it), spark1 and spark2 (docker, fakes). What takes
# long is kept: the system, and the gateway's environment until its lock changes.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
mkdir -p "$MACHINES/m"
for m in gw spark1 spark2; do ! up $m || { echo "$m runs: boot.sh down" >&2; exit 1; }; done
cd "$MACHINES"
certs=/etc/ssl/certs/ca-certificates.crt
# apt_in TREE PACKAGE...: starts no service
apt_in() {
  local t=$1
  shift
  cp /etc/resolv.conf "$t/etc/resolv.conf"
  printf '#!/bin/sh\nexit 101\n' >"$t/usr/sbin/policy-rc.d"
  chmod +x "$t/usr/sbin/policy-rc.d"
  mount -t proc proc "$t/proc"
  DEBIAN_FRONTEND=noninteractive chroot "$t" sh -c 'apt-get update -q && apt-get install -y -q --no-install-recommends "$@"' sh "$@" >>apt.log 2>&1 \
    || { umount "$t/proc"; tail -5 apt.log >&2; exit 1; }
  umount "$t/proc"
  rm "$t/usr/sbin/policy-rc.d"
  cp $certs "$t$certs"
}
if [ ! -e base/.done ]; then
  rm -rf base
  cp -a rootfs base
  apt_in base systemd systemd-sysv dbus sudo openssh-server openssh-client procps iproute2 make git libnss-systemd \
    docker.io iptables kmod iputils-ping curl
  # the engine's image, loaded once into the tree
  mkdir -p engine pre
  cp "$HERE/fakes/vllm" engine/
  printf 'FROM %s\nUSER 0:0\nCOPY vllm /usr/local/bin/vllm\nHEALTHCHECK NONE\nENTRYPOINT ["vllm","serve"]\nCMD []\n' $IMAGE >engine/Dockerfile
  DOCKER_BUILDKIT=0 docker -H "$HOSTDOCK" build -q -t vllm/vllm-openai:v0.20.0 engine >/dev/null 2>&1
  dockerd --data-root "$PWD/base/var/lib/docker" --exec-root "$PWD/pre/exec" -H "unix://$PWD/pre/sock" --pidfile "$PWD/pre/pid" \
    --bridge=none --iptables=false >pre/log 2>&1 &
  d=$!
  for _ in $(seq 100); do docker -H "unix://$PWD/pre/sock" info >/dev/null 2>&1 && break; sleep 0.3; done
  docker -H "$HOSTDOCK" save vllm/vllm-openai:v0.20.0 | docker -H "unix://$PWD/pre/sock" load >/dev/null
  kill $d
  wait $d || true
  touch base/.done
fi
# The gateway of docs/deploy.md, word for word but for `git clone`: the files of this checkout are put there.
# shellcheck disable=SC2016  # expanded by the inner shell
sources() { (cd "$SOURCE" && git ls-files -z | xargs -0 sh -c 'for f; do [ -e "$f" ] && printf "%s\0" "$f"; done' sh | tar -c --null -T -) | tar -x -C "$1"; }
if [ ! -e gwtree/.done ] || ! cmp -s gwtree/requirements.lock "$SOURCE/requirements.lock" || ! cmp -s gwtree/pyproject.toml "$SOURCE/pyproject.toml"; then
  rm -rf gwtree base/opt/spark-gateway
  mkdir -p base/opt/spark-gateway
  sources base/opt/spark-gateway
  cp /etc/resolv.conf base/etc/resolv.conf
  mount -t proc proc base/proc
  chroot base env SSL_CERT_FILE=$certs PIP_CERT=$certs make -C /opt/spark-gateway .venv/.run >gwtree.log 2>&1 \
    || { umount base/proc; tail -5 gwtree.log >&2; exit 1; }
  umount base/proc
  mv base/opt/spark-gateway gwtree
  touch gwtree/.done
fi
# what an earlier version had and this one has not would be imported all the same
find gwtree -mindepth 1 -maxdepth 1 ! -name .venv ! -name .done -exec rm -rf {} +
sources gwtree
touch gwtree/.venv/.run
tree() { # NAME
  local m=m/$1
  if [ ! -e "$m/.done" ]; then
    rm -rf "$m"
    cp -a base "$m"
  fi
  echo "$1" >"$m/etc/hostname"
  printf '127.0.0.1 localhost\n%s.2 gw\n%s.11 spark1\n%s.12 spark2\n' $NET $NET $NET >"$m/etc/hosts"
  mkdir -p "$m/etc/systemd/network"
  printf '[Match]\nName=host0\n[Network]\nAddress=%s.%s/24\nLinkLocalAddressing=no\n' $NET "${IP[$1]}" >"$m/etc/systemd/network/10-host0.network"
  chroot "$m" systemctl -q enable systemd-networkd systemd-networkd-wait-online
  chroot "$m" id ops >/dev/null 2>&1 || chroot "$m" useradd -m -s /bin/bash -G sudo ops
  echo ops:ops | chroot "$m" chpasswd
  chroot "$m" ssh-keygen -q -A
  # what an earlier run installed, and what its services kept
  rm -rf "$m"/etc/spark "$m"/etc/spark-gateway "$m"/usr/local/lib/spark "$m"/etc/systemd/system/*spark-* "$m"/etc/systemd/system/multi-user.target.wants/spark-* \
    "$m"/etc/sudoers.d/spark "$m"/var/lib/private/spark-gateway "$m"/var/lib/spark-gateway "$m/$HOMES"/ops/fleet "$m/$HOMES"/ops/spark? "$m"/usr/local/bin/gateway \
    "$m"/srv/models "$m/$HOMES"/ops/routes.yaml
  rm -rf "$m/opt/spark-gateway"
  mkdir -p "$m/opt/spark-gateway" # gwtree is mounted there (machine.sh)
}
spark() {
  local m=m/$1
  tree "$1"
  chroot "$m" usermod -aG docker ops
  install -m 0755 "$HERE/fakes/nvidia-smi" "$HERE/fakes/nvidia-container-runtime-hook" "$m/usr/bin/"
  install -m 0755 "$HERE/fakes/exporter" "$m/usr/local/bin/exporter"
  mkdir -p "$m/srv/models/.fake" "$m/srv/vllm-cache" "$m/opt/vllm/bin"
  install -m 0755 "$HERE/fakes/vllm" "$m/opt/vllm/bin/vllm"
  # /proc/sys belongs to the host's kernel: what the units write to drop_caches lands in a file
  cat >"$m/etc/systemd/system/scene.service" <<'U'
[Unit]
DefaultDependencies=no
Before=docker.service containerd.service sysinit.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for c in blkio cpu pids cpuacct memory devices freezer cpuset; do mount -o remount,bind,rw /sys/fs/cgroup/$c; done; : >/run/drop_caches; mount --bind /run/drop_caches /proc/sys/vm/drop_caches; mkdir -p /run/fake-smi; cp /usr/local/share/spark-meminfo /run/fake-meminfo; mount --bind /run/fake-meminfo /proc/meminfo'
RemainAfterExit=yes
[Install]
WantedBy=sysinit.target
U
  printf 'MemTotal:       125483264 kB\nMemFree:        119000000 kB\nMemAvailable:   120000000 kB\nBuffers:           10000 kB\nCached:          1000000 kB\nSwapTotal:              0 kB\nSwapFree:               0 kB\n' >"$m/usr/local/share/spark-meminfo"
  printf '[Service]\nExecStart=/usr/local/bin/exporter\n[Install]\nWantedBy=multi-user.target\n' >"$m/etc/systemd/system/exporter.service"
  chroot "$m" systemctl -q enable scene exporter
  touch "$m/.done"
}
spark spark1
spark spark2
tree gw
chroot m/gw systemctl -q disable docker.service docker.socket containerd.service
touch m/gw/.done
