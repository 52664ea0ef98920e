#!/usr/bin/env bash
# Does every vector of docs/vectors.md against the binary and real tools, and prints what was observed of each.
#
# Usage: scripts/vectors.sh
#
# A line a vector: number, exit status and code, what is named, what was done. Then the locks of every format, cut at
# every line. What could not run on this machine prints a line "SKIPPED: why", and is counted.
# Exit 0: everything answered as its row says. Exit 1: something did not, or did not run. Exit 64: usage.
set -uo pipefail
cd "$(dirname "$0")/.."

case ${1-} in
    '') ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) printf 'usage: scripts/vectors.sh\n' >&2; exit 64 ;;
esac

scripts/setup.sh >&2 || exit 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --locked -p semel --test it vectors:: -- --nocapture >"$log" 2>&1
status=$?
grep -a '^vector ' "$log" | sort -k2,2V
printf '\n'
grep -a '^cut ' "$log" | sort -k2,2
printf '\n'
rows=$(grep -acE '^\| r?[0-9]+[a-z]? \|' docs/vectors.md)
seen=$(grep -ac '^vector ' "$log")
skipped=$(grep -ac 'SKIPPED: ' "$log")
printf '%d of %d rows shown, %d skipped\n' "$seen" "$rows" "$skipped"
grep -a 'SKIPPED: ' "$log"
if [ "$status" != 0 ]; then
    grep -aE 'panicked|^assertion|^  left|^ right|FAILED|^error' "$log" >&2
    exit 1
fi
[ "$seen" = "$rows" ]
