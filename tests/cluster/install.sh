#!/bin/sh
# Installs the Debian packages that tests/cluster needs and this machine lacks; says what cannot be installed.
set -u

install_missing() {   # PROGRAM PACKAGE
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "make test-cluster: $1 is missing, and there is no root with apt-get to install $2" >&2
        return
    fi
    [ -n "${updated-}" ] || apt-get update -qq >/dev/null 2>&1
    updated=yes
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$2" >/dev/null 2>&1 ||
        echo "make test-cluster: $2 could not be installed" >&2
}

PATH="$PATH:/usr/sbin:/sbin"
install_missing munged munge
install_missing slurmctld slurmctld
install_missing slurmd slurmd
install_missing srun slurm-client
install_missing ip iproute2
install_missing nsenter util-linux
