#!/bin/sh
# Volumes: a generation, its recycling and its freeing, over 1,000 and 20,000 files, beside cp -a and rm -rf.
# bench/volumes/run.sh [--rounds N] [DIR]; DIR is where it works, and says which filesystem is measured.
set -eu
rounds=30
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2; shift 2 ;;
    -*) echo "usage: $0 [--rounds N] [DIR]" >&2; exit 64 ;;
    *) break ;;
    esac
done
here=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/semel-bench-volumes.XXXXXX")
clean() {
    # What is mounted beneath is ours alone.
    awk -v at="$place/" 'index($5, at) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r at; do umount "$at" || :; done
    rm -rf "$place"
}
trap clean EXIT INT TERM
(cd "$here" && cargo build --quiet --profile "${PROFILE:-release}" --locked -p semel-host --example volumes)
directory=${PROFILE:-release}
[ "$directory" = dev ] && directory=debug
driver="$here/target/$directory/examples/volumes"

echo "filesystem: $(df -PT "$place" | awk 'NR == 2 { print $2 }'), kernel $(uname -r), $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg)"
for files in 1000 20000; do
    python3 - "$place/tree-$files" "$files" <<'PY'
import os, pathlib, random, sys
top, files = pathlib.Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(7)
for n in range(files):
    # Ten files a directory; 6 kB each on average, mostly smaller.
    at = top / f"d{n // 100:03}" / f"e{n // 10 % 10}"
    at.mkdir(parents=True, exist_ok=True)
    (at / f"f{n}").write_bytes(chance.randbytes(int(min(100_000, chance.expovariate(1 / 6_000)))))
PY
    echo "== $files files, $(du -sm "$place/tree-$files" | cut -f1) MB"
    mkdir "$place/state-$files"
    "$driver" "$place/state-$files" "$place/tree-$files" "$rounds"
    python3 - "$place" "$place/tree-$files" <<'PY'
import json, pathlib, subprocess, sys, time
place, tree = pathlib.Path(sys.argv[1]), sys.argv[2]
took = {"cp -a": [], "rm -rf": []}
for n in range(3):
    copy = str(place / f"copy-{n}")
    for name, command in (("cp -a", ["cp", "-a", tree, copy]), ("rm -rf", ["rm", "-rf", copy])):
        since = time.perf_counter()
        subprocess.run(command, check=True)
        took[name].append(1e6 * (time.perf_counter() - since))
for name, all in took.items():
    all.sort()
    print(json.dumps({"what": name, "backend": "peer", "n": len(all), "min_us": round(all[0], 1), "p50_us": round(all[1], 1), "max_us": round(all[-1], 1)}))
PY
done
