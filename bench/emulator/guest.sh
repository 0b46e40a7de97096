# What a guest is made of: sourced by run.sh and by scripts/on-kernel.sh. Sets work and root.
work=$PWD/.cache/emulator
root=$work/root
mkdir -p "$work"
scripts/packages.sh run test emulator

# Fetches the newest of those kernels of Debian's, without its headers and firmware, and sets kernel, its folder, and version: fetch_kernel SUITE PATTERN.
fetch_kernel() {
  local apt=$work/apt/$1 package
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$work/kernels"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $1 main" >"$apt/sources.list"
  : >"$apt/status"
  local options=(-o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::status=$apt/status" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" -q update >/dev/null
  package=$(apt-cache "${options[@]}" pkgnames linux-image- | grep -E "$2" | sort -V | tail -1) || true
  if [ -z "$package" ]; then
    echo "no kernel of $1 matches $2" >&2
    exit 1
  fi
  kernel=$work/kernels/$package
  if [ ! -d "$kernel" ]; then
    rm -rf "$kernel.part" "$apt/$package"_*.deb
    (cd "$apt" && apt-get "${options[@]}" -q download "$package" >/dev/null)
    dpkg-deb -x "$apt/$package"_*.deb "$kernel.part"
    mv "$kernel.part" "$kernel"
  fi
  modules=$(echo "$kernel"/usr/lib/modules/* "$kernel"/lib/modules/* | tr ' ' '\n' | grep -v '\*' | head -1)
  version=$(basename "$modules")
}

# Begins a guest's file system, all of which is in its memory.
begin() {
  rm -rf "$root"
  mkdir -p "$root"/{bin,sbin,lib,proc,sys,dev,tmp,run,root,etc,var/log/nginx,var/lib/nginx,usr/bin,usr/sbin,usr/lib}
  add /bin /usr/sbin/ip /usr/sbin/nft /usr/bin/taskset /usr/bin/kmod /usr/bin/busybox
  local applet
  for applet in sh mount cat mkdir chmod uname poweroff sed; do ln -s busybox "$root/bin/$applet"; done
  ln -s /bin/kmod "$root/sbin/modprobe"
  grep -E '^(root|nobody|www-data):' /etc/passwd >"$root/etc/passwd"
  grep -E '^(root|nogroup|www-data):' /etc/group >"$root/etc/group"
  echo 'hosts: files' >"$root/etc/nsswitch.conf"
  echo '127.0.0.1 localhost' >"$root/etc/hosts"
}

# Puts programs into a folder there, with their libraries: add FOLDER PROGRAM...
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

# Packs it with the kernel's modules and this first process: pack INIT.
pack() {
  local to=$root/usr/lib/modules/$version
  mkdir -p "$to/kernel/drivers/net"
  ln -s ../usr/lib/modules "$root/lib/modules"
  cp -r "$modules/kernel"/{net,lib,crypto} "$to/kernel/"
  cp "$modules/kernel/drivers/net"/*.ko* "$to/kernel/drivers/net/"
  cp "$modules"/modules.{builtin,builtin.modinfo,order} "$to/"
  find "$to" -name '*.ko.xz' -exec xz -d {} +
  depmod -b "$root/usr" "$version" 2>/dev/null || depmod -b "$root" "$version"
  install -m 0755 "$1" "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs.cpio"
}
