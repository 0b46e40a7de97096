#!/usr/bin/env bash
# Holds the licence of every dependency against the allowed ones.
set -euo pipefail
cd "$(dirname "$0")/.."
go-licenses check ./... --ignore heddle.io/heddle \
  --allowed_licenses=Apache-2.0,MIT,BSD-2-Clause,BSD-3-Clause,ISC,MPL-2.0,Unlicense,CC0-1.0,Zlib 2> >(grep -v 'contains non-Go code' >&2)
cargo deny --manifest-path proxy/Cargo.toml check licenses bans sources
