#!/usr/bin/env bash
# Group commit: what 64 clients that each write under new keys get from the journal, in both durability modes.
#
# `power` needs a journaled filesystem: as root, a loop-mounted ext4 image is made for it (and taken away again).
# Elsewhere DIR is used as it is, and where it cannot keep `power`, the run says `power-best-effort`.
# Beside it stands what the disk itself can do: 4 KiB overwritten in place, each with fdatasync, one after the other.
#
# Usage: bench/group_commit.sh [--seconds N] [--clients N] [DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=10 clients=64 dir=
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=$2; shift 2 ;;
        --clients) clients=$2; shift 2 ;;
        *) dir=$1; shift ;;
    esac
done
cargo build --quiet --release --locked -p semel -p semel-store --bins --examples
bin=$PWD/target/release
scratch=$(mktemp -d)
daemon=
finish() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    wait 2>/dev/null || true
    if mountpoint -q "$scratch/ext4" 2>/dev/null; then umount "$scratch/ext4"; fi
    rm -rf "$scratch"
}
trap finish EXIT

mode=power
if [ -z "$dir" ]; then
    if [ "$(id -u)" = 0 ] && command -v mkfs.ext4 >/dev/null; then
        truncate -s 4G "$scratch/image"
        mkfs.ext4 -q -F -N 1000000 "$scratch/image"
        mkdir "$scratch/ext4"
        mount -o loop "$scratch/image" "$scratch/ext4"
        dir=$scratch/ext4
        echo "place    a loop-mounted ext4 with a journal"
    else
        dir=$scratch mode=power-best-effort
        echo "place    $dir; not root or no mkfs.ext4, so no journaled filesystem of our own: $mode"
    fi
fi

echo "== the journal alone, $clients threads"
"$bin/examples/group_commit" "$dir" "$seconds" "$clients"

# Prints the members of a JSON object that were asked for, one a line.
members() { python3 -c 'import json, sys; o = json.load(sys.stdin); [o := o[n] for n in sys.argv[1].split(".") if n]; print(*(o[n] for n in sys.argv[2:]), sep="\n")' "$@"; }
counted() { "$bin/semel" --quiet --json --state "$1" status | members daemon.journal commits synced_commits rows | tr '\n' ' '; }

for durability in "$mode" process; do
    state=$dir/state-$durability
    "$bin/semel" --quiet --state "$state" serve --listen 127.0.0.1:0 >"$scratch/serve.txt" 2>&1 &
    daemon=$!
    for _ in $(seq 100); do [ -S "$state/semel.sock" ] && break; sleep 0.05; done
    echo "== the whole gateway, $clients HTTP clients, each call write_file under a new key, durability $durability"
    "$bin/semel" --quiet --json --state "$state" volume open bench --durability "$durability" >"$scratch/volume.json"
    { read -r url; read -r token; read -r tree; } < <(members "" url token tree <"$scratch/volume.json")
    before=$(counted "$state")
    "$bin/examples/load" http --url "$url" --route /v1/tools/write_file --op write --root "$tree" --names relative \
        --clients "$clients" --seconds "$seconds" --files 1000000 --header 'idempotency-key: {key}' \
        --header "authorization: Bearer $token" --body '{"path":"{path}","content":"{content}"}' | tee "$scratch/load.json"
    read -r c0 s0 r0 <<<"$before"; read -r c1 s1 r1 <<<"$(counted "$state")"
    echo "$((c1 - c0)) commits ($((s1 - s0)) synced), $((r1 - r0)) rows in about $seconds s"
    kill "$daemon"
    wait "$daemon" || true
    daemon=
done
