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
import pathlib, random, sys
top, files = pathlib.Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(7)
for n in range(files):
    # Ten files a directory; 6 kB each on average, mostly smaller.
    at = top / f"d{n // 100:03}" / f"e{n // 10 % 10}"
    at.mkdir(parents=True, exist_ok=True)
    (at / f"f{n}").write_bytes(chance.randbytes(int(min(100_000, chance.expovariate(1 / 6_000)))))
PY
    echo "tree of $files files: $(du -sm "$place/tree-$files" | cut -f1) MB"
done
sync -f "$place"
mkdir "$place/state"
"$driver" "$place/state" "$place/tree-1000" "$place/tree-20000" "$rounds" >"$place/ours"
python3 - "$place" <<'PY'
import json, pathlib, subprocess, sys, time
place = pathlib.Path(sys.argv[1])
rows = [json.loads(line) for line in (place / "ours").read_text().splitlines()]
for name, tree in (("small", place / "tree-1000"), ("large", place / "tree-20000")):
    took = {"cp -a": [], "rm -rf": []}
    for n in range(3):
        copy = str(place / f"copy-{n}")
        for what, command in (("cp -a", ["cp", "-a", str(tree), copy]), ("rm -rf", ["rm", "-rf", copy])):
            since = time.perf_counter()
            subprocess.run(command, check=True)
            took[what].append(1e6 * (time.perf_counter() - since))
    for what, all in took.items():
        all.sort()
        rows.append({"what": what, "backend": "peer", "tree": name, "n": len(all), "min_us": all[0], "p50_us": all[len(all) // 2], "max_us": all[-1]})
for row in rows:
    if "skipped" in row:
        print(f"SKIPPED: {row['skipped']}: {row['why']}")
    else:
        print(f"{row['backend']:8} {row['what']:32} {row['tree']:6} n={row['n']:<3} min {row['min_us']:>12.1f} µs  p50 {row['p50_us']:>12.1f} µs")
def of(backend, what, tree, how="p50_us"):
    found = [r for r in rows if (r.get("backend"), r.get("what"), r.get("tree")) == (backend, what, tree)]
    return found[0][how] if found else float("nan")
def ratio(name, over, under, wanted):
    print(f"{name}: {over / under:.2f} (wanted: {wanted})")
made = "generation, with its tree"
ratio("overlay generation, 20,000 files / 1,000 files, p50", of("overlay", made, "large"), of("overlay", made, "small"), "1, constant")
ratio("overlay generation, 20,000 files / 1,000 files, min", of("overlay", made, "large", "min_us"), of("overlay", made, "small", "min_us"), "1, constant")
ratio("cp -a of 20,000 files / overlay generation", of("peer", "cp -a", "large"), of("overlay", made, "large"), "more is better")
aside = max(of(b, "put aside", "large") for b in ("dir", "overlay") if of(b, "put aside", "large") == of(b, "put aside", "large"))
print(f"recycle, until the next generation opens: {aside:.0f} µs (wanted: < 1000); rm -rf of the same: {of('peer', 'rm -rf', 'large'):.0f} µs")
PY
