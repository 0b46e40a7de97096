#!/usr/bin/env bash
# Runs the tests of a Go package that loads eBPF programs on another kernel of Debian's, in an emulated machine:
#
#   scripts/on-kernel.sh bookworm ./control/agent/bypass -test.run 'TestPayload|TestWhatCannotBeLoaded' -test.v
#
# The suites bookworm (Linux 6.1), trixie (6.12) and trixie-backports (6.18 and later) are tried. Fetches the kernel, and keeps it in .cache/emulator. Needs
# root; takes some minutes. The exit code is the tests'.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${1:?name a suite of Debian, such as bookworm}
package=${2:?name a Go package, such as ./control/agent/bypass}
shift 2
. bench/emulator/guest.sh
fetch_kernel "$suite" '^linux-image-[0-9.-]+(\+deb1[0-9])?(-[0-9]+)?-cloud-amd64$'
begin
go test -c -o "$work/tests" "$package"
add /bin "$work/tests"
# Tests read what lies beside them.
mkdir -p "$root/src"
git ls-files --cached --others --exclude-standard "$package" bpf docs | cpio -pdm --quiet "$root/src"
cat >"$work/init" <<'INIT'
#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
uname -r
arguments=$(cat /arguments)
cd "/src/$(cat /package)"
eval "/bin/tests $arguments"
echo "exit code $?"
poweroff -f
INIT
printf '%q ' "$@" >"$root/arguments"
echo "$package" >"$root/package"
pack "$work/init"
log=$work/$suite-$(date +%H%M%S).log
qemu-system-x86_64 -accel tcg,thread=multi -M pc -cpu max -smp 2 -m 4G -nodefaults -no-reboot -nographic -serial "file:$log" -rtc clock=vm \
  -kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initramfs.cpio" -append "console=ttyS0 rdinit=/init loglevel=4 panic=-1 random.trust_cpu=1"
tr -d '\r' <"$log"
grep -q '^exit code 0' <(tr -d '\r' <"$log")
