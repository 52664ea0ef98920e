"""Makes a table of one run: half and 95 of 100 of each, and the ratios that were promised."""
import json
import sys

files, rounds = int(sys.argv[1]), int(sys.argv[2])
took = {}
for line in sys.stdin:
    one = json.loads(line)
    took.setdefault((one["what"], one["who"]), []).append(one["us"] / 1000)


def at(key, part):
    times = sorted(took[key])
    return times[min(len(times) - 1, int(len(times) * part))]


print(f"\n{files} files, {rounds} rounds            p50 ms    p95 ms")
for key in took:
    print(f"  {key[0]:9} {key[1]:18} {at(key, .5):9.2f} {at(key, .95):9.2f}")

free, released = ("free", "git"), ("released", "git every 50 ms")
over = at(("free", "ours tree"), 0.5) - at(free, 0.5)
part = at(("released", "ours tree"), 0.95) / at(released, 0.95)
proof = at(("free", "ours bytes"), 0.5) - at(("free", "ours tree"), 0.5)
most, bars = (15 if files == 1000 else 200), []
bars.append((f"uncontended, tree, over git: {over:.2f} ms", over <= 0.5, "0.5 ms"))
if files == 1000:
    last = at(("released", "ours tree"), 0.95)
    bars.append((f"released to restored, tree, p95: {last:.2f} ms", last <= 10, "10 ms"))
    bars.append((f"of what the 50 ms policy takes, p95: {part:.2f}", part <= 0.25, "0.25"))
bars.append((f"proof of the bytes: {proof:.2f} ms", proof <= most, f"{most} ms"))
for what, held, bar in bars:
    print(f"  {'held  ' if held else 'MISSED'} {what} (bar {bar})")
