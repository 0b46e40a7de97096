#!/usr/bin/env bash
# Looks for known vulnerabilities in the dependencies. A database that cannot be reached is a counted skip; a
# vulnerability that was found is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
skipped=0

output=$(govulncheck ./... 2>&1) && echo "$output" | tail -n 1 || {
  if grep -qE 'fetching vulnerabilities|no such host|dial tcp|403 Forbidden' <<<"$output"; then
    echo "SKIP Go vulnerabilities: the database of govulncheck cannot be reached from here"
    skipped=$((skipped + 1))
  else
    echo "$output" >&2
    exit 1
  fi
}

output=$(cargo deny --manifest-path proxy/Cargo.toml check advisories 2>&1) && echo "Rust advisories: ok" || {
  if grep -qE 'failed to (fetch|clone|load) advisory|Could not resolve host|failed to resolve address|unable to fetch' <<<"$output"; then
    echo "SKIP Rust advisories: the RustSec database cannot be reached from here"
    skipped=$((skipped + 1))
  else
    echo "$output" >&2
    exit 1
  fi
}
echo "vulnerability checks: $((2 - skipped)) run, $skipped skipped"
