#!/usr/bin/env bash
# A worktree is restored, uncontended and from the moment that somebody lets its lock go: by us in a running process, by our
# command (the start of the process shown apart), by git once, by git again every 50 ms, and by git as soon as inotify
# tells; in one run, interleaved by round, with 1,000 and 20,000 files.
#
# The place is a tmpfs where one is to be had (/dev/shm), so that the disk's mood is nobody's advantage; give DIR for a
# disk: then what we sync is in the figures, and git syncs nothing.
#
# Usage: bench/restore/run.sh [--rounds N] [--dirty N] [--git PATH] [DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=40 dirty=0 git=$(command -v git) dir=/dev/shm
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2; shift 2 ;;
        --dirty) dirty=$2; shift 2 ;;
        --git) git=$2; shift 2 ;;
        --*) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 64 ;;
        *) dir=$1; shift ;;
    esac
done
command -v python3 >/dev/null || { echo "python3 is needed" >&2; exit 69; }
[ -d "$dir" ] || dir=${TMPDIR:-/tmp}
cargo build --quiet --release --locked -p semel --bins
cargo build --quiet --release --locked -p semel-host --example worktree
scratch=$(mktemp -d -p "$dir")
trap 'rm -rf "$scratch"' EXIT
export HOME=$scratch/home XDG_STATE_HOME=$scratch/state GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
mkdir "$HOME"
echo "machine  $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), kernel $(uname -r), $("$git" version)"
echo "place    $(stat -f -c %T "$scratch"), $dirty files changed before each restoration"
for files in 1000 20000; do
    repo=$scratch/r$files wt=$scratch/wt$files
    mkdir "$repo"
    (
        cd "$repo"
        "$git" init -q
        for d in $(seq 0 15); do mkdir "d$d"; done
        python3 -c 'import sys
for n in range(int(sys.argv[1])):
    open(f"d{n % 16}/f{n}", "w").write(f"file {n}\n" * 20)' "$files"
        "$git" add -A
        "$git" -c user.name=b -c user.email=b@example.org -c gc.auto=0 -c maintenance.auto=false commit -qm one
        "$git" gc -q
        "$git" worktree add -q "$wt" -b w
    )
    tree=$("$git" -C "$wt" rev-parse 'HEAD^{tree}')
    n=$rounds
    [ "$files" = 1000 ] || n=$(((rounds + 3) / 4))
    target/release/examples/worktree "$git" target/release/semel "$wt" "$tree" "$n" "$dirty" > "$scratch/lines"
    python3 bench/restore/table.py "$files" "$n" < "$scratch/lines"
done
