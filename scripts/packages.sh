#!/usr/bin/env bash
# Installs the Debian packages of the named groups (build, run, demo, pgo, test, emulator) that are missing.
set -euo pipefail

declare -A groups=(
  # BoringSSL is built from source, and its bindings are generated.
  [build]="git make cmake g++ clang libclang-dev"
  [run]="nftables iproute2"
  # The shop keeps its carts in Redis.
  [demo]="redis-server"
  # Who sends requests to the proxy that counts what it executes, and the library of the tool that reads it.
  [pgo]="nginx-light nghttp2-client libc++1 python3-venv python3-pip"
  # llvm strips the eBPF programs that clang makes, which are committed: the check of generated files makes them again.
  [test]="llvm curl procps nginx-light haproxy redis-server wrk nghttp2-client nghttp2-server tcpdump valgrind libhyperscan5 openssl gnutls-bin chromium protobuf-compiler python3-venv python3-pip"
  # A machine that counts instructions (bench/emulator).
  [emulator]="qemu-system-x86 busybox-static cpio kmod xz-utils"
)

missing=()
for group in "$@"; do
  for package in ${groups[$group]:?unknown group $group, want build, run, demo, pgo, test or emulator}; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
done
[ ${#missing[@]} -eq 0 ] && exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if [ "$(id -u)" -ne 0 ]; then
  echo "missing Debian packages: ${missing[*]}. Run as root: apt-get update && ${install[*]}" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Tests and demo start servers of their own: Debian's must not start at installation and take their ports.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt-get update -q >/dev/null
"${install[@]}" >/dev/null
