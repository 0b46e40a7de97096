#!/usr/bin/env bash
# Regenerates the committed generated files and fails when they differ.
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
