#!/usr/bin/env bash
# Writes over MCP's pipes, 1 and 16 in flight: ours through its bridge in `process` and `power`, server-filesystem and
# rust-mcp-filesystem, in one run that takes turns. Every write is looked for on the disk.
#
# `power` needs a journaled filesystem: as root, a loop-mounted ext4 is made for the run (and taken away again). Elsewhere DIR, or
# the temporary directory, is used as it is, and the run says `power-best-effort`. rust-mcp-filesystem is built by cargo once.
#
# Usage: bench/mcp/run.sh [--rounds N] [--seconds S] [DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
pass=() dir=
while [ $# -gt 0 ]; do
    case $1 in
        --rounds | --seconds) pass+=("$1" "$2"); shift 2 ;;
        -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
        --*) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 64 ;;
        *) dir=$1; shift ;;
    esac
done
command -v python3 >/dev/null || { echo "python3 is needed" >&2; exit 69; }
cargo build --quiet --release --locked -p semel --bins --examples
scratch=$(mktemp -d)
finish() {
    if mountpoint -q "$scratch/ext4" 2>/dev/null; then umount "$scratch/ext4"; fi
    rm -rf "$scratch"
}
trap finish EXIT

mode=power-best-effort
if [ -z "$dir" ] && [ "$(id -u)" = 0 ] && command -v mkfs.ext4 >/dev/null; then
    truncate -s 8G "$scratch/ext4.image"
    mkfs.ext4 -q -F -N 2000000 "$scratch/ext4.image" >/dev/null
    mkdir "$scratch/ext4"
    if mount -o loop "$scratch/ext4.image" "$scratch/ext4"; then
        chmod 711 "$scratch" "$scratch/ext4"
        dir=$scratch/ext4 mode=power
    fi
fi
dir=$(mktemp -d "${dir:-$scratch}/bench-mcp.XXXXXX")
chmod 711 "$dir"
echo "place    $dir, $mode"
echo "machine  $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), kernel $(uname -r)"
PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 python3 bench/mcp/bench.py --power "$mode" "${pass[@]}" "$dir/run"
rm -rf "$dir"
