#!/usr/bin/env bash
# Fuzzes every target, one after the other. Needs a nightly compiler; nothing else of the house does.
#
# Usage: fuzz/run.sh [minutes] [target ...]
#   minutes  for each target; 1 without it
#   target   archive, canonical, collision, edit, key, lock_json, lock_lines, lock_toml, lock_yaml, patch, path or
#            record; all without one
#
# What it finds on the way lies in fuzz/target/found/, and is not kept: fuzz/corpus/ is, small, and replayed by
# `cargo test -p semel-core --test corpus` and, of archives, by `cargo test -p semel-host tarball`. A crash lies in
# fuzz/artifacts/; put it into the corpus, and mend it.
# Exit 0: no crash. Exit 1: a crash, or something is missing. Exit 64: usage.
set -uo pipefail
cd "$(dirname "$0")" || exit 1

minutes=${1:-1}
shift $(($# > 0))
case $minutes in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' run.sh; exit 0 ;;
    '' | *[!0-9]*) printf 'usage: fuzz/run.sh [minutes] [target ...]\n' >&2; exit 64 ;;
esac
targets=("$@")
[ "${#targets[@]}" -gt 0 ] || targets=(archive canonical collision edit key lock_json lock_lines lock_toml lock_yaml patch path record)

if ! rustc +nightly --version >/dev/null 2>&1; then
    rustup toolchain install nightly --profile minimal || { printf 'no nightly compiler\n' >&2; exit 1; }
fi
tools=$PWD/target/tools
if ! cargo fuzz --version >/dev/null 2>&1 && ! [ -x "$tools/bin/cargo-fuzz" ]; then
    cargo install cargo-fuzz --locked --root "$tools" || { printf 'no cargo-fuzz\n' >&2; exit 1; }
fi
export PATH="$tools/bin:$PATH"

failed=()
for target in "${targets[@]}"; do
    printf '\n== %s\n' "$target" >&2
    mkdir -p "target/found/$target"
    # The first directory takes what is found; the corpus itself is only read.
    cargo +nightly fuzz run "$target" "target/found/$target" "corpus/$target" -- \
        -max_total_time=$((minutes * 60)) -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        || failed+=("$target")
done
if [ "${#failed[@]}" -gt 0 ]; then
    printf '\nFAILED: %s\n' "${failed[@]}"
    exit 1
fi
printf '\nno crash\n'
