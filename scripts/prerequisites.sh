#!/usr/bin/env bash
# Checks the toolchains that the distribution has too old and that `make` does not install.
set -euo pipefail

failed=0

# need NAME MINIMUM FOUND REMEDY
need() {
  local name=$1 minimum=$2 found=$3 remedy=$4
  if [ -z "$found" ]; then
    echo "prerequisite missing: $name >= $minimum is not on the PATH. $remedy" >&2
    failed=1
  elif [ "$(printf '%s\n%s\n' "$minimum" "$found" | sort -V | head -n 1)" != "$minimum" ]; then
    echo "prerequisite too old: $name $found, needed >= $minimum. $remedy" >&2
    failed=1
  fi
}

version() { command -v "$1" >/dev/null 2>&1 && "$@" 2>/dev/null | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -n 1 || true; }

need Go 1.26 "$(version go version)" "Get it from https://go.dev/dl and put its bin folder on the PATH."
need Rust 1.95 "$(version rustc --version)" "Get it with rustup: https://rustup.rs, then: rustup toolchain install 1.95"
need Cargo 1.95 "$(version cargo --version)" "It comes with Rust: https://rustup.rs"
need Python 3.9 "$(version python3 --version)" "On Debian: apt-get install python3"
exit "$failed"
