#!/usr/bin/env bash
# A tree is sealed, looked at again and unpacked: by us, and by what that is held against, in one run, interleaved by round,
# with 1,000, 20,000 and 200,000 entries, and with one file of 2 GB.
#
# The place is a tmpfs where one is to be had (/dev/shm), so that the disk's mood is nobody's advantage; give DIR for a
# disk: then what we sync is in the figures, and tar syncs nothing. It needs 7 GB there, and bash, tar, python3.
#
# Usage: bench/seal/run.sh [--rounds N] [--only 1000|20000|200000|2g] [DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=9 only='' dir=/dev/shm
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2; shift 2 ;;
        --only) only=$2; shift 2 ;;
        --*) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 64 ;;
        *) dir=$1; shift ;;
    esac
done
command -v python3 >/dev/null || { echo "python3 is needed" >&2; exit 69; }
[ -d "$dir" ] || dir=${TMPDIR:-/tmp}
cargo build --quiet --release --locked -p semel-host --example seal
scratch=$(mktemp -d -p "$dir")
trap 'rm -rf "$scratch"' EXIT
echo "machine  $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), kernel $(uname -r), $(tar --version | head -1)"
echo "         $(grep -qw sha_ni /proc/cpuinfo && echo 'SHA instructions' || echo 'no SHA instructions')"
echo "place    $(stat -f -c %T "$scratch")"
for size in 1000 20000 200000 2g; do
    [ -z "$only" ] || [ "$only" = "$size" ] || continue
    mkdir "$scratch/tree"
    python3 bench/seal/tree.py "$scratch/tree" "$size"
    n=$rounds
    case $size in 200000 | 2g) n=$(((rounds + 2) / 3)) ;; esac
    target/release/examples/seal "$scratch/tree" "$scratch/archives" "$scratch/into" "$n" > "$scratch/lines"
    python3 bench/seal/table.py "$size" "$n" < "$scratch/lines"
    rm -rf "${scratch:?}"/*
done
