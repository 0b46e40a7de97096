#!/usr/bin/env bash
# Regenerates the committed generated files and fails when they differ; lock files too.
set -euo pipefail
cd "$(dirname "$0")/.."
before=$(git status --porcelain)
go generate ./...
after=$(git status --porcelain)
if [ "$before" != "$after" ]; then
  echo "generated files differ from what is committed: run make generate and commit the result" >&2
  git --no-pager diff --stat >&2
  exit 1
fi
for workspace in proxy proxy/fuzz; do
  if ! cargo metadata --locked --format-version 1 --manifest-path "$workspace/Cargo.toml" >/dev/null; then
    echo "$workspace/Cargo.lock does not fit its Cargo.toml: run cargo metadata there and commit the result" >&2
    exit 1
  fi
done
