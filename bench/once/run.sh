#!/usr/bin/env bash
# Once, beside its peers: our gateway, the baseline of SQLite, effectfence, DBOS for Rust, Restate and rust-mcp-filesystem in
# one run, interleaved by round, with the disk's own speed beside each line; then what is counted of ours.
#
# `power` needs a journaled filesystem: as root, loop-mounted images of ext4 and xfs are made for the run (and taken away
# again). Elsewhere DIR, or the temporary directory, is used as it is, and the run says `power-best-effort`.
# Peers are fetched by cargo and npm into target/bench-once; what cannot be had is printed as `skipped: why`.
#
# Usage: bench/once/run.sh [--rounds N] [--seconds S] [--only NAME,…] [--long] [--no-facts] [--out FILE.jsonl] [DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
pass=() dir=
while [ $# -gt 0 ]; do
    case $1 in
        --rounds | --seconds | --only | --out) pass+=("$1" "$2"); shift 2 ;;
        --long | --no-facts) pass+=("$1"); shift ;;
        --*) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 64 ;;
        *) dir=$1; shift ;;
    esac
done
command -v python3 >/dev/null || { echo "python3 is needed" >&2; exit 69; }
cargo build --quiet --release --locked -p semel --bins --examples
scratch=$(mktemp -d)
finish() {
    for place in ext4 xfs; do
        if mountpoint -q "$scratch/$place" 2>/dev/null; then umount "$scratch/$place"; fi
    done
    rm -rf "$scratch"
}
trap finish EXIT

# Mounts an image of a filesystem; says why it cannot.
mounted() { # NAME MKFS...
    local name=$1; shift
    command -v "$1" >/dev/null || { echo "skipped: $name: no $1"; return 1; }
    truncate -s 16G "$scratch/$name.image"
    "$@" "$scratch/$name.image" >/dev/null || { echo "skipped: $name: $1 failed"; return 1; }
    mkdir "$scratch/$name"
    mount -o loop "$scratch/$name.image" "$scratch/$name" || { echo "skipped: $name: it cannot be mounted"; return 1; }
    # Others reach their own files below it, and no more.
    chmod 711 "$scratch" "$scratch/$name"
}

places=() mode=power
if [ -z "$dir" ] && [ "$(id -u)" = 0 ]; then
    if mounted ext4 mkfs.ext4 -q -F -N 3000000; then
        places+=(--place "ext4=$scratch/ext4")
        if mounted xfs mkfs.xfs -q -f; then places+=(--place "xfs=$scratch/xfs"); fi
    fi
fi
if [ ${#places[@]} = 0 ]; then
    dir=${dir:-$scratch} mode=power-best-effort
    echo "place    $dir: no journaled filesystem of our own, so no promise of power: $mode"
    places=(--place "here=$dir")
else
    echo "place    loop-mounted images, with a journal each: ${places[*]#--place}"
fi
echo "machine  $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), kernel $(uname -r)"
PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 python3 bench/once/bench.py "${places[@]}" --power "$mode" "${pass[@]}"
