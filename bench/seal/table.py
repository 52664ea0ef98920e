"""Makes a table of one run: the medians, and the ratios that were promised, round by round."""
import json
import statistics
import sys

size, rounds = sys.argv[1], int(sys.argv[2])
took = {}
for line in sys.stdin:
    one = json.loads(line)
    took.setdefault(one["what"], []).append(one["ms"])
print(f"\n{'one file of 2 GB' if size == '2g' else size + ' entries'}, {rounds} rounds      median ms      least")
for what, times in took.items():
    print(f"  {what:26} {statistics.median(times):14.1f} {min(times):10.1f}")


def ratio(ours, theirs):
    each = sorted(a / b for a, b in zip(took[ours], took[theirs]))
    return statistics.median(each), each[0], each[-1]


for what, ours, theirs, bar in [
    ("tree identity and archive / read + SHA-1 + SHA-256", "seal", "floor", 1.3),
    ("looking again / read + SHA-256", "verify", "floor-sums", 1.3),
    ("unseal / tar -x with sha256sum in a pipe", "unseal", "tee | tar -x, sha256sum", 1.3),
    ("unseal / tar -x beside sha256sum", "unseal", "tar -x beside sha256sum", 1.3),
    ("unseal with git's tree / tar -x with sha256sum in a pipe", "unseal, with git's tree", "tee | tar -x, sha256sum", None),
]:
    middle, least, most = ratio(ours, theirs)
    held = "      " if bar is None else "held  " if middle <= bar else "MISSED"
    print(f"  {held} {what}: {middle:.2f} [{least:.2f} - {most:.2f}]" + (f" (bar {bar})" if bar else ""))
