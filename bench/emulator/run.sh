#!/usr/bin/env bash
# Counts the instructions of a benchmark's requests, the kernel's among them, on a machine that has no performance counters:
#
#   bench/emulator/run.sh p2 -runs 2 -duration 1s
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
work=$PWD/.cache/emulator
root=$work/root
mkdir -p "$work"
scripts/packages.sh run test emulator

# Linux 6.18, which the bypass takes and was made on; Debian 12 has an older one.
if ! ls "$work"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
  mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/kernel"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie-backports main" >"$work/apt/sources.list"
  : >"$work/apt/status"
  apt=(-o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::status=$work/apt/status" -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" -q update >/dev/null
  kernel=$(apt-cache "${apt[@]}" pkgnames linux-image-6.18 | grep -E '^linux-image-[0-9.]+\+deb13-cloud-amd64$' | sort -V | tail -1)
  (cd "$work/apt" && apt-get "${apt[@]}" -q download "$kernel" >/dev/null)
  dpkg-deb -x "$work/apt/$kernel"_*.deb "$work/kernel"
fi
version=$(ls "$work/kernel/usr/lib/modules")

# All that the guest needs is in its memory. Puts a program into a folder there, with its libraries.
add() {
  local to=$1 file library
  shift
  for file; do
    install -D -t "$root$to" "$file"
    { ldd "$file" 2>/dev/null || true; } | { grep -oE '/[^ ]+' || true; } | while read -r library; do
      [ -e "$root$library" ] || install -D "$(realpath "$library")" "$root$library"
    done
  done
}
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,lib,proc,sys,dev,tmp,run,root,etc,var/log/nginx,var/lib/nginx,usr/bin,usr/sbin,usr/lib}
go build -o "$work/bench" ./bench/cmd/bench
add /bin "$work/bench" bin/heddle-proxy /usr/bin/wrk /usr/sbin/nginx /usr/sbin/ip /usr/sbin/nft /usr/bin/taskset /usr/bin/kmod /usr/bin/busybox
for applet in sh mount cat mkdir chmod uname poweroff sed; do ln -s busybox "$root/bin/$applet"; done
ln -s /bin/kmod "$root/sbin/modprobe"
# These scenarios start no Envoy: a name is enough.
ln -s busybox "$root/bin/envoy"
grep -E '^(root|nobody|www-data):' /etc/passwd >"$root/etc/passwd"
grep -E '^(root|nogroup|www-data):' /etc/group >"$root/etc/group"
echo 'hosts: files' >"$root/etc/nsswitch.conf"
echo '127.0.0.1 localhost' >"$root/etc/hosts"
modules=$root/usr/lib/modules/$version
mkdir -p "$modules/kernel/drivers/net"
ln -s ../usr/lib/modules "$root/lib/modules"
cp -r "$work/kernel/usr/lib/modules/$version/kernel"/{net,lib,crypto} "$modules/kernel/"
cp "$work/kernel/usr/lib/modules/$version/kernel/drivers/net"/*.ko* "$modules/kernel/drivers/net/"
cp "$work/kernel/usr/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$modules/"
find "$modules" -name '*.ko.xz' -exec xz -d {} +
depmod -b "$root/usr" "$version" 2>/dev/null || depmod -b "$root" "$version"
install -m 0755 bench/emulator/init "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs.cpio"

name=$work/$scenario-$(date +%H%M%S)
arguments=$(IFS=,; echo "-scenario,$scenario,$*")
qemu-system-x86_64 -accel tcg,thread=single,tb-size=512 -icount shift=0,sleep=off,align=off -M pc -cpu max,-erms,-fsrm -smp 1 -m 3G \
  -nodefaults -no-reboot -nographic -serial "file:$name.log" -rtc clock=vm -kernel "$work/kernel/boot/vmlinuz-$version" -initrd "$work/initramfs.cpio" \
  -append "console=ttyS0 rdinit=/init tsc=reliable tsc_early_khz=1000000 lpj=4000000 idle=halt preempt=none no_timer_check random.trust_cpu=1 loglevel=4 panic=-1 arguments=$arguments"
sed -n '/^JSON$/,/^END$/p' <(tr -d '\r' <"$name.log") | sed '1d;$d' >"$name.json"
grep -q '"subjects"' "$name.json" || { echo "the benchmark gave no result; the guest's console is $name.log" >&2; exit 1; }
echo "$name.json"
