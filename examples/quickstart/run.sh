#!/usr/bin/env bash
# From a repository whose test fails to a certificate and a passing gate, in a fresh directory.
#
# Needs git, a Rust toolchain and python3; downloads nothing but, once, what Semel itself is built of.
# Usage: examples/quickstart/run.sh [DIR]   DIR is made, and must not exist; default: a new temporary directory.
#        SEMEL=path/to/semel takes a binary that is built already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

if [ -z "${SEMEL:-}" ]; then
    (cd "$root" && cargo build --quiet --locked --package semel)
    SEMEL=${CARGO_TARGET_DIR:-$root/target}/debug/semel
fi
SEMEL=$(realpath "$SEMEL")

if [ $# -gt 0 ]; then mkdir "$1" && dir=$(realpath "$1"); else dir=$(mktemp -d); fi
# A private directory of its own: the state root holds tokens and the signing key.
chmod 700 "$dir"
semel() { "$SEMEL" --state "$dir/state" "$@"; }

printf '== a repository\n'
cp -r "$here/project" "$dir/repository"
git -C "$dir/repository" init --quiet --initial-branch main
git -C "$dir/repository" add --all
git -C "$dir/repository" -c user.name=quickstart -c user.email=quickstart@localhost commit --quiet --message "Greet"
base=$(git -C "$dir/repository" rev-parse HEAD)
printf 'base %s in %s\n' "$base" "$dir/repository"

printf '\n== a job\n'
mkdir "$dir/job"
cp "$here/agent.py" "$dir/job/agent.py"
sed "s/@BASE@/$base/" "$here/job.toml.in" >"$dir/job/job.toml"
cat "$dir/job/job.toml"

printf '\n== a key, and a gate policy that trusts it\n'
semel key new
semel key show --policy | tee "$dir/gate.toml"

printf '\n== the run\n'
semel --json run "$dir/job/job.toml" >"$dir/run.json"
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$dir/run.json" "$1"; }
printf 'certificate %s\n' "$(field envelope)"

printf '\n== the gate, on the commit of the new branch\n'
candidate=$(git -C "$dir/repository" rev-parse semel/greeting)
semel gate --certificate "$(field envelope)" --record "$(field install_record)" \
    --repository "$dir/repository" --commit "$candidate" --policy "$dir/gate.toml"

printf '\n== the same gate, on a commit that nobody tested\n'
git -C "$dir/repository" checkout --quiet -b one-byte-more semel/greeting
printf '\n' >>"$dir/repository/src/lib.rs"
git -C "$dir/repository" -c user.name=quickstart -c user.email=quickstart@localhost commit --quiet --all --message "One byte"
other=$(git -C "$dir/repository" rev-parse HEAD)
status=0
semel gate --certificate "$(field envelope)" --record "$(field install_record)" \
    --repository "$dir/repository" --commit "$other" --policy "$dir/gate.toml" || status=$?
[ "$status" = 30 ] || { printf 'the gate ought to have refused with 30, it gave %s\n' "$status" >&2; exit 1; }
printf '\nexit %s, as it should be. Everything is kept in %s\n' "$status" "$dir"
