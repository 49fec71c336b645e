#!/bin/bash
# The base of the image as a Debian tree, the docker daemon, and the image as docs/deploy.md builds it. Kept: the tree and the base.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
mkdir -p "$MACHINES" && cd "$MACHINES"
if [ ! -e rootfs/.done ]; then
  rm -rf rootfs
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm rootfs >debootstrap.log 2>&1
  ln -sf python3 rootfs/usr/bin/python
  touch rootfs/.done
fi
cp /etc/ssl/certs/ca-certificates.crt rootfs/etc/ssl/certs/ # also those that this machine has of its own
"$HERE/docker_up.sh"
export DOCKER_HOST=$HOSTDOCK
certs=/etc/ssl/certs/ca-certificates.crt
docker image inspect $BASE >/dev/null 2>&1 \
  || tar -C rootfs -c . | docker import --change "ENV SSL_CERT_FILE=$certs PIP_CERT=$certs" - $BASE >/dev/null
cd "$SOURCE"
docker build --network host --build-arg PYTHON_IMAGE=$BASE -f deploy/Dockerfile -t $IMAGE . >"$MACHINES/image.log" 2>&1 \
  || { tail -20 "$MACHINES/image.log" >&2; exit 1; }
