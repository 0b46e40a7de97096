#!/usr/bin/env bash
# Builds and runs every fuzz target: run.sh [seconds per target] [target...]. Fails when one of them finds something.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-20}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: $0 [seconds per target] [target...]" >&2; exit 2; }
shift || true
targets=("$@")
if ((${#targets[@]} == 0)); then
	for source in src/bin/*.rs; do targets+=("$(basename "$source" .rs)"); done
fi

# What libFuzzer needs from the compiler. These are LLVM's flags, so the stable toolchain takes them. The triple is named
# so that build scripts and procedural macros, which are no subject here, go without.
triple=$(rustc -vV | sed -n 's/^host: //p')
coverage=(
	-Cpasses=sancov-module
	-Cllvm-args=-sanitizer-coverage-level=4
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters
	-Cllvm-args=-sanitizer-coverage-pc-table
	-Cllvm-args=-sanitizer-coverage-trace-compares
)
export RUSTFLAGS="${coverage[*]} ${RUSTFLAGS:-}"
bins=()
for target in "${targets[@]}"; do bins+=(--bin "$target"); done
cargo --color never build --locked --quiet --release --target "$triple" "${bins[@]}"
built=${CARGO_TARGET_DIR:-$PWD/target}/$triple/release

failed=()
printf '%-18s %12s %12s %s\n' target executions per-second result
for target in "${targets[@]}"; do
	mkdir -p "corpus/$target" "found/$target" "artifacts/$target"
	log=artifacts/$target.log
	result=ok
	# The seeds are read only; what is learnt goes to found/, what breaks to artifacts/.
	options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1)
	options+=(-artifact_prefix="artifacts/$target/")
	[[ ! -f dictionaries/$target ]] || options+=(-dict="dictionaries/$target")
	# Without an environment: a format may print variables, and a finding must not depend on whose they are.
	env -i "$built/$target" "${options[@]}" "found/$target" "corpus/$target" >"$log" 2>&1 || result=FOUND
	stat() { sed -n "s/^stat::$1: *//p" "$log"; }
	printf '%-18s %12s %12s %s\n' "$target" "$(stat number_of_executed_units)" "$(stat average_exec_per_sec)" "$result"
	if [[ $result != ok ]]; then
		failed+=("$target")
		grep -E -A 12 "panicked at|^==[0-9]+== ?ERROR|Test unit written" "$log" | tail -n 40 >&2 || tail -n 40 "$log" >&2
	fi
done

if ((${#failed[@]})); then
	echo "findings in: ${failed[*]}; the inputs are in $PWD/artifacts, README.md says what to do with them" >&2
	exit 1
fi
