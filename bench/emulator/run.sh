#!/usr/bin/env bash
# Counts the instructions of a benchmark's requests, the kernel's among them, on a machine that has no performance counters:
#
#   bench/emulator/run.sh p2 -runs 2 -duration 5s
#
# The benchmark runs in QEMU with -icount shift=0, where a nanosecond of the guest is one instruction, on one processor. So the guest's processor
# times are numbers of instructions: `cpu_us_per_request` is thousands of them. Latencies mean nothing there. -erms and -fsrm are off because each
# turn of `rep movsb` counts as an instruction; tsc_early_khz has the clock be the count.
#
# Takes bin/heddle-proxy (make build PGO=1). Installs QEMU, and keeps a kernel of Debian's backports, the guest's file system and what came of
# it in .cache/emulator. Takes some minutes. Needs root.
set -euo pipefail
cd "$(dirname "$0")/../.."
scenario=${1:?name a scenario that one processor is enough for: p2 or p2-mtls}
shift
. bench/emulator/guest.sh

# Linux 6.18, which the bypass takes and was made on; Debian 12 has an older one.
fetch_kernel trixie-backports '^linux-image-6\.18[0-9.]*\+deb13-cloud-amd64$'
begin
go build -o "$work/bench" ./bench/cmd/bench
add /bin "$work/bench" bin/heddle-proxy /usr/bin/wrk /usr/sbin/nginx
# These scenarios start no Envoy: a name is enough.
ln -s busybox "$root/bin/envoy"
pack bench/emulator/init

name=$work/$scenario-$(date +%H%M%S)
arguments=$(IFS=,; echo "-scenario,$scenario,$*")
qemu-system-x86_64 -accel tcg,thread=single,tb-size=512 -icount shift=0,sleep=off,align=off -M pc -cpu max,-erms,-fsrm -smp 1 -m 3G \
  -nodefaults -no-reboot -nographic -serial "file:$name.log" -rtc clock=vm -kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initramfs.cpio" \
  -append "console=ttyS0 rdinit=/init tsc=reliable tsc_early_khz=1000000 lpj=4000000 idle=halt preempt=none no_timer_check random.trust_cpu=1 loglevel=4 panic=-1 arguments=$arguments"
sed -n '/^JSON$/,/^END$/p' <(tr -d '\r' <"$name.log") | sed '1d;$d' >"$name.json"
grep -q '"subjects"' "$name.json" || { echo "the benchmark gave no result; the guest's console is $name.log" >&2; exit 1; }
echo "$name.json"
