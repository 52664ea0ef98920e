"""Once, beside its peers, in one run: interleaved rounds, ratios taken round by round. Started by run.sh.

>>> results, what = Results(None), ("delete", "new", 64)
>>> for number, (ours, theirs) in enumerate([(10, 5), (30, 10), (9, None)]):
...     results.put(number, "ext4", "ours", what, {"per_s": ours})
...     if theirs: results.put(number, "ext4", "theirs", what, {"per_s": theirs})
>>> results.ratio("ext4", "ours", "theirs", what)
[2.0, 3.0]
>>> results.ratio("xfs", "ours", "theirs", what)
[]
>>> spread([2.0, 3.0, 10.0]).split()
['3.00', '[2.00', '-', '10.00]']
"""
import argparse, json, os, shutil, statistics, sys
from pathlib import Path

import facts
from systems import Baseline, Dbos, Effectfence, FETCHED, McpFiles, Restate, Semel, Skipped, load

CLIENTS = (1, 16, 64)
# No more files than this are made ahead of one measurement; a run that uses them up ends earlier.
FILES = 60_000
# Calls per second at the first look, by which files are made ahead; later the last round says.
GUESS = {1: 2_000, 16: 10_000, 64: 16_000}


def measure(system, op, mode, clients, seconds, last, prefix):
    if op == "stdio":
        return load("stdio", "--clients", clients, "--seconds", seconds, "--bytes", 1024, "--prefix", prefix, *system.args(op))
    rate = 1.5 * last if last else GUESS[clients]
    files = max(20, int(min(FILES, rate * seconds) / clients))
    size = 1024 if op == "write" else 1
    return load("http", "--op", op, "--mode", mode, "--clients", clients, "--seconds", seconds, "--files", files, "--bytes", size,
                "--prefix", prefix, *system.args(op))


def plan(system, place):
    """Says what is measured of a system: operation, mode and clients. Beside the first place, only what is promised of it."""
    if "stdio" in system.ops:
        return [("stdio", "new", 16)]
    if place == "xfs":
        return [("delete", "new", c) for c in CLIENTS]
    both = [("delete", mode, c) for c in CLIENTS for mode in ("new", "replay")]
    # The one comparison that is of writes.
    return both + [("write", "new", 16)] if system.name == "semel process" else both


class Results:
    def __init__(self, out):
        self.rows, self.out = {}, out

    def put(self, number, place, system, what, row):
        self.rows[place, system, *what, number] = row
        if self.out:
            line = {"round": number, "place": place, "system": system, "op": what[0], "mode": what[1], **row}
            self.out.write(json.dumps(line) + "\n")
            self.out.flush()

    def of(self, place, system, what, field="per_s"):
        """Gives a figure by round."""
        return {key[-1]: row[field] for key, row in self.rows.items() if key[:-1] == (place, system, *what)}

    def ratio(self, place, ours, theirs, what, what_theirs=None):
        """Gives ours divided by theirs, round by round."""
        a, b = self.of(place, ours, what), self.of(place, theirs, what_theirs or what)
        return [a[n] / b[n] for n in sorted(a) if b.get(n)]


def begin(place, directory, systems, skipped):
    """Starts every system of a place; all of them wait while one is measured."""
    shutil.rmtree(directory, ignore_errors=True)
    running = []
    for system in systems:
        if place not in system.places or system.name in skipped:
            continue
        running.append(system)
        try:
            system.start(directory / system.name.replace(" ", "-"))
        except (Skipped, OSError) as e:
            skipped[system.name] = str(e)
            print(f"skipped: {system.name}: {e}", flush=True)
            system.stop()
            running.remove(system)
    return running


def one_round(number, place, directory, running, results, seconds, last):
    """Measures each step of every system, one system after the other, so that those who are compared stand side by side.
    Whose turn is first goes round."""
    steps = list(dict.fromkeys(what for system in running for what in plan(system, place)))
    # What is compared with each other is measured side by side.
    steps.sort(key=lambda what: (what[2], what[1], what[0] != "delete"))
    for turn, what in enumerate(steps):
        op, mode, clients = what
        first = (number + turn) % len(running)
        for system in running[first:] + running[:first]:
            if what not in plan(system, place):
                continue
            # Nobody pays for what another left unsynced.
            os.sync()
            disk = load("disk", "--root", directory, "--seconds", 0.5)
            time = seconds if mode == "new" else max(1, seconds / 2)
            try:
                row = measure(system, op, mode, clients, time, last.get((place, system.name, *what)), f"r{number}{mode[0]}{op[0]}{clients}")
            except RuntimeError as e:
                print(f"round {number + 1}  {place:5} {system.name:20} {op} {mode} {clients}: {e}: {system.last_words()}", flush=True)
                continue
            last[place, system.name, *what] = row["per_s"]
            row.update(disk_per_s=disk["per_s"], disk_p99_ms=disk["p99_ms"])
            results.put(number, place, system.name, what, row)
            say(number, place, system, what, row)


def say(number, place, system, what, row):
    op, mode, clients = what
    fault = f"  {row['bad']} refused: {row.get('first_bad', '')}" if row["bad"] else ""
    fault += f"  {row['missed']} told, and not done" if row["missed"] else ""
    print(f"round {number + 1}  {place:5} {system.name:20} {op:6} {mode:6} {clients:>2} clients  {row['per_s']:>9,.0f}/s  p50 {row['p50_ms']:>8.2f} ms"
          f"  p99 {row['p99_ms']:>8.2f} ms   disk {row['disk_per_s']:>6,.0f}/s, p99 {row['disk_p99_ms']:.2f} ms{fault}", flush=True)


def spread(values):
    return f"{statistics.median(values):8.2f}  [{min(values):.2f} - {max(values):.2f}]" if values else "       -"


def table(results, places, systems, reference):
    for place in places:
        for mode in ("new", "replay"):
            print(f"\n== {place}, {'new keys' if mode == 'new' else 'replays'}: calls/s and p99 ms, medians; x: {reference} divided by it, round by round")
            for system in systems:
                cells = []
                for clients in CLIENTS:
                    what = ("delete", mode, clients)
                    rates = list(results.of(place, system.name, what).values())
                    if not rates:
                        continue
                    late = statistics.median(results.of(place, system.name, what, "p99_ms").values())
                    times = results.ratio(place, reference, system.name, what)
                    times = f"x{statistics.median(times):6.2f}" if times else "x     -"
                    cells.append(f"{clients:>2}: {statistics.median(rates):>8,.0f} {late:>8.2f} {times}")
                if cells:
                    print(f"  {system.name:22}" + "   ".join(cells))


def promises(results, main, power):
    """Gives what has to hold: what it is, the ratios of all rounds, and the bound."""
    new, again = (lambda clients: ("delete", "new", clients)), (lambda clients: ("delete", "replay", clients))
    writes = ("write", "new", 16), ("stdio", "new", 16)
    return [
        (f"64 clients, new keys: power / baseline full, {main}", results.ratio(main, power, "baseline full", new(64)), 0.6),
        ("64 clients, new keys: power / baseline full, xfs", results.ratio("xfs", power, "baseline full", new(64)), 0.6),
        ("64 clients, new keys: power / restate", results.ratio(main, power, "restate", new(64)), 10),
        ("64 clients, new keys: power / dbos rust", results.ratio(main, power, "dbos rust", new(64)), 8),
        ("64 clients, new keys: power / effectfence", results.ratio(main, power, "effectfence", new(64)), 4),
        ("64 clients, new keys: process / baseline full", results.ratio(main, "semel process", "baseline full", new(64)), 1),
        ("16 clients, new keys: process / baseline full", results.ratio(main, "semel process", "baseline full", new(16)), 1.5),
        ("16 clients: process writes / rust-mcp-filesystem's", results.ratio(main, "semel process", "rust-mcp-filesystem", *writes), 1),
        ("1 client, new keys: power / restate", results.ratio(main, power, "restate", new(1)), 5),
        ("64 clients, replays: power / baseline full", results.ratio(main, power, "baseline full", again(64)), 0.5),
        ("64 clients, replays: process / baseline full", results.ratio(main, "semel process", "baseline full", again(64)), 0.5),
    ]


def beside(results, main, power):
    print("\n== for comparison: medians of the rounds' ratios [least - most]")
    for clients in CLIENTS:
        normal = results.ratio(main, "semel process", "baseline normal", ("delete", "new", clients))
        print(f"  {clients:>2} clients, new keys: process / baseline normal, which syncs nothing  {spread(normal)}")
    ours = results.of(main, power, ("delete", "new", 64), "p99_ms")
    disk = results.of(main, power, ("delete", "new", 64), "disk_p99_ms")
    print(f"  64 clients, new keys: p99 of power / p99 of the disk's own fdatasync  {spread([ours[n] / disk[n] for n in ours if disk[n]])}")


def main():
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--place", action="append", default=[], metavar="NAME=DIR")
    ask.add_argument("--rounds", type=int, default=3)
    ask.add_argument("--seconds", type=float, default=4)
    ask.add_argument("--power", default="power")
    ask.add_argument("--long", action="store_true")
    ask.add_argument("--only", default="", help="names of systems, separated by commas")
    ask.add_argument("--no-facts", action="store_true")
    ask.add_argument("--out", type=Path)
    wanted = ask.parse_args()
    places = {name: Path(place) for name, place in (text.split("=", 1) for text in wanted.place)}
    FETCHED.mkdir(parents=True, exist_ok=True)
    power = f"semel {wanted.power}"
    main_place, both = next(iter(places)), tuple(places)
    systems = [Semel("process", both[:1]), Semel(wanted.power, both), Baseline("full", both), Baseline("normal", both[:1]),
               Effectfence(), Dbos(), Restate(), McpFiles()]
    for system in systems:
        system.places = system.places or both[:1]
    if wanted.only:
        systems = [s for s in systems if s.name in wanted.only.split(",")]
    skipped, results, last = {}, Results(wanted.out.open("a") if wanted.out else None), {}
    for system in systems:
        try:
            system.prepare()
        except Skipped as e:
            skipped[system.name] = str(e)
            print(f"skipped: {system.name}: {e}", flush=True)
    for number in range(wanted.rounds):
        for place, directory in places.items():
            running = []
            try:
                running = begin(place, directory / "run", systems, skipped)
                one_round(number, place, directory, running, results, wanted.seconds, last)
            finally:
                for system in running:
                    system.stop()
                shutil.rmtree(directory / "run", ignore_errors=True)
    table(results, places, systems, "baseline full")
    beside(results, main_place, power)
    print("\n== what has to hold: median of the rounds' ratios [least - most]")
    missed = []
    for what, ratios, bound in promises(results, main_place, power):
        verdict = "not measured" if not ratios else "holds" if statistics.median(ratios) >= bound else "MISSED"
        if verdict != "holds":
            missed.append(what)
        print(f"  {what:56} >= {bound:>4}  {spread(ratios)}  {verdict}")
    if not wanted.no_facts:
        missed += facts.all_of(places[main_place], wanted.power, wanted.long)
    for name, why in skipped.items():
        print(f"skipped: {name}: {why}")
    print(f"\n{len(missed)} missed or not measured" + "".join(f"\n  {what}" for what in missed))


if __name__ == "__main__":
    sys.exit(main())
