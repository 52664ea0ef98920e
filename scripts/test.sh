#!/usr/bin/env bash
# Runs every test: format, lints, tests, documentation. The README's second command.
#
# Usage: scripts/test.sh [--no-skips]
#   --no-skips  a test that could not run on this machine is a failure (what CI uses)
#
# A test that cannot run here prints a line "SKIPPED: why". They are counted and shown at the end.
# Exit 0: all passed. Exit 1: something failed, or was skipped under --no-skips. Exit 64: usage.
set -uo pipefail
cd "$(dirname "$0")/.."

no_skips=no
for argument in "$@"; do
    case $argument in
        --no-skips) no_skips=yes ;;
        -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) printf 'usage: scripts/test.sh [--no-skips]\n' >&2; exit 64 ;;
    esac
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=()

step() {
    local name=$1
    shift
    printf '\n== %s\n' "$name" >&2
    # Both streams go to the log: tests write their SKIPPED lines to stderr.
    "$@" 2>&1 | tee -a "$log"
    [ "${PIPESTATUS[0]}" = 0 ] || failed+=("$name")
}

absent() {
    printf 'SKIPPED: %s\n' "$1" | tee -a "$log" >&2
}

scripts/setup.sh || exit 1
export PATH="$PATH:/usr/sbin:/sbin"

if cargo fmt --version >/dev/null 2>&1; then
    step "format" cargo fmt --all --check
else
    absent "format: this toolchain has no rustfmt"
fi
if cargo clippy --version >/dev/null 2>&1; then
    step "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
else
    absent "lints: this toolchain has no clippy"
fi
# --show-output, since what a passing test says is hidden otherwise, and with it what it skipped.
step "tests" cargo test --workspace --locked --no-fail-fast -- --show-output
step "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

printf '\n== result\n'
awk '/^test result:/ { passed += $4; failed += $6 }
     END { printf "%d tests passed, %d failed\n", passed, failed; exit passed == 0 }' "$log" \
    || failed+=("no test ran")
skipped=$(grep -ao 'SKIPPED: .*' "$log")
if [ -n "$skipped" ]; then
    printf '%d skipped:\n' "$(wc -l <<<"$skipped")"
    sort <<<"$skipped" | uniq -c
    [ "$no_skips" = no ] || failed+=("something was skipped")
else
    printf '0 skipped\n'
fi
if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
printf 'all passed\n'
