# Installs what the tests call and this machine lacks. Sourced by dev/test and dev/soak.
# shellcheck shell=bash

# The programs that tests run, each with the Debian package that has it.
readonly WANTED_TOOLS="
    cc:gcc ld:binutils git:git openssl:openssl jq:jq shellcheck:shellcheck
    qemu-io:qemu-utils fio:fio nbdcopy:libnbd-bin etcd:etcd-server redis-server:redis-server
    fusermount3:fuse3 fuse-overlayfs:fuse-overlayfs setpriv:util-linux python3:python3 mkfs.ext4:e2fsprogs losetup:mount
    ip:iproute2
"

install_tools() {
    local entry missing=() sudo=()
    for entry in $WANTED_TOOLS; do
        command -v "${entry%%:*}" >/dev/null || missing+=("${entry#*:}")
    done
    # Without Go, the real control plane is built with the one from PyPI.
    command -v go >/dev/null || python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv ca-certificates)
    if ((${#missing[@]} == 0)); then
        say "all tools are there"
        return 0
    fi
    command -v apt-get >/dev/null || die "please install: ${missing[*]} (this machine has no apt-get)"
    if ((EUID != 0)); then
        command -v sudo >/dev/null || die "please install as root: apt-get install ${missing[*]}"
        sudo=(sudo)
    fi
    say "installing with apt: ${missing[*]}"
    # etcd and redis are started by the tests that want them, never by the system.
    local policy=/usr/sbin/policy-rc.d ours=no status=0
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
        "${sudo[@]}" chmod +x "$policy"
        ours=yes
    fi
    { "${sudo[@]}" apt-get update -qq && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends "${missing[@]}"; } >/dev/null || status=$?
    [[ $ours == no ]] || "${sudo[@]}" rm -f "$policy"
    ((status == 0)) || die "apt could not install: ${missing[*]}"
    say "installed: ${missing[*]}"
}
