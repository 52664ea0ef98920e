#!/usr/bin/env bash
# How long the gate takes, as a command, from start to exit: a certificate made on the spot, its policy from a file and from
# a base commit. Beside it, interleaved, what it cannot do without: the start of our process, and one git that
# reads the same objects.
#
# Usage: bench/gate/run.sh [--rounds N] [DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=300 dir=${TMPDIR:-/tmp}
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2; shift 2 ;;
        --*) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 64 ;;
        *) dir=$1; shift ;;
    esac
done
command -v python3 >/dev/null || { echo "python3 is needed" >&2; exit 69; }
cargo build --quiet --release --locked -p semel --bins
semel=$PWD/target/release/semel
scratch=$(mktemp -d -p "$dir")
# The daemon that the run started ends with its place.
end() {
    about=$scratch/site/state/daemon.json
    [ ! -e "$about" ] || kill "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$about")" || true
    # It goes when the daemon, which takes away what it mounted, is gone.
    for _ in $(seq 100); do [ -e "$about" ] || break; sleep 0.1; done
    rm -rf "$scratch"
}
trap end EXIT
SEMEL=$semel examples/quickstart/run.sh "$scratch/site" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
echo "machine  $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), kernel $(uname -r), $(git version)"
python3 -B bench/gate/loop.py "$semel" "$scratch/site" "$rounds"
