"""Servers of files over MCP's pipes, ours behind its bridge, in one run: rounds take turns, ratios are taken round by round.
Started by run.sh."""
import argparse, json, os, shutil, statistics, subprocess, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "once"))
from systems import FETCHED, McpFiles, REPOSITORY, RELEASE, Semel, Skipped, load  # noqa: E402

IN_FLIGHT = (1, 16)
WRITE = '{"name":"write_file","arguments":{"path":"{path}","content":"{content}"}}'


class Bridged(Semel):
    """Ours, as an agent without keys speaks to it."""

    def args(self, op):
        bridge = [RELEASE / "semel", "--quiet", "mcp", "--socket", self.directory / "state/run/app/app.sock", "--spool", self.directory / "spool"]
        if op == "same":
            # Each call is one of its own, though all are alike and come at once.
            bridge += ["--reissue", "execute"]
        os.environ["SEMEL_TOKEN"] = self.volume["token"]
        return ["--root", self.volume["tree"], "--names", "relative", "--body", WRITE, "--", *bridge]


class ServerFilesystem(McpFiles):
    name = "server-filesystem"

    def prepare(self):
        self.modules = REPOSITORY / ".tools/mcp/node_modules"
        if not (self.modules / "node/bin/node").exists():
            raise Skipped("it is not in .tools/mcp; scripts/setup.sh makes it")

    def args(self, op):
        files = self.directory / "files"
        server = [self.modules / "node/bin/node", self.modules / "@modelcontextprotocol/server-filesystem/dist/index.js"]
        return ["--root", files, "--body", WRITE, "--", *server, files]


def measure(number, system, directory, in_flight, seconds):
    os.sync()
    disk = load("disk", "--root", directory, "--seconds", 0.5)
    row = load("stdio", "--clients", in_flight, "--seconds", seconds, "--bytes", 1024, "--prefix", f"r{number}x{in_flight}", *system.args("write"))
    fault = f"  {row['bad']} refused: {row.get('first_bad', '')}" if row["bad"] else ""
    fault += f"  {row['missed']} told, and not done" if row["missed"] else ""
    print(f"round {number + 1}  {system.name:24} {in_flight:>2} in flight  {row['per_s']:>8,.0f}/s  p50 {row['p50_ms']:>7.2f} ms"
          f"  p99 {row['p99_ms']:>7.2f} ms   disk {disk['per_s']:>6,.0f}/s{fault}", flush=True)
    return row["per_s"] if not fault else None


def inspected(system, calls=1000, at_once=16):
    """Lets the Inspector load a system: it can make one and the same call alone."""
    modules = REPOSITORY / ".tools/mcp/node_modules"
    args = [str(a) for a in system.args("same")]
    server, root = args[args.index("--") + 1:], Path(args[args.index("--root") + 1])
    path = "same" if isinstance(system, Semel) else str(root / "same")
    argv = [modules / "node/bin/node", modules / ".bin/mcp-inspector", "--cli", "--quiet", "--method", "tools/call", "--tool-name", "write_file",
            "--tool-args-json", json.dumps({"path": path, "content": "x" * 1024}), "--load", "--load-concurrency", at_once, "--load-requests", calls,
            "-e", f"SEMEL_TOKEN={os.environ.get('SEMEL_TOKEN', '')}", "--", *server]
    out = subprocess.run([str(a) for a in argv], capture_output=True, text=True, env={**os.environ, "HOME": str(system.directory)})
    try:
        told = json.loads(out.stdout)
    except ValueError:
        return print(f"  {system.name:24} not measured: {(out.stderr or out.stdout).strip()[:200]}")
    took = told["latencyMs"]
    print(f"  {system.name:24} {told['ok']} of {told['requests']} answered well  {told['throughput']:>8,.0f}/s  p50 {took['p50']:>7.2f} ms  p99 {took['p99']:>7.2f} ms")


def spread(values):
    return f"{statistics.median(values):6.2f}  [{min(values):.2f} - {max(values):.2f}]" if values else "     -"


def main():
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--seconds", type=float, default=3)
    ask.add_argument("--power", default="power")
    ask.add_argument("directory", type=Path)
    wanted = ask.parse_args()
    FETCHED.mkdir(parents=True, exist_ok=True)
    power, place = f"semel {wanted.power}", ("here",)
    systems = [Bridged("process", place), Bridged(wanted.power, place), ServerFilesystem(), McpFiles()]
    running, rows = [], {}
    try:
        for system in systems:
            try:
                system.prepare()
                system.start(wanted.directory / system.name.replace(" ", "-"))
                running.append(system)
            except (Skipped, OSError) as e:
                system.stop()
                print(f"skipped: {system.name}: {e}", flush=True)
        for number in range(wanted.rounds):
            for turn, in_flight in enumerate(IN_FLIGHT):
                first = (number + turn) % len(running)
                for system in running[first:] + running[:first]:
                    rows[system.name, in_flight, number] = measure(number, system, wanted.directory, in_flight, wanted.seconds)
        print("\n== the Inspector's own load, 16 in flight, one and the same write", flush=True)
        for system in running:
            inspected(system)
    finally:
        for system in running:
            system.stop()
        shutil.rmtree(wanted.directory, ignore_errors=True)

    def ratios(ours, theirs, in_flight):
        pairs = [(rows.get((ours, in_flight, n)), rows.get((theirs, in_flight, n))) for n in range(wanted.rounds)]
        return [a / b for a, b in pairs if a and b]

    print("\n== medians of the rounds' ratios [least - most]")
    missed = 0
    for ours, theirs, bars in [
        (power, "server-filesystem", {16: 1.0}),
        ("semel process", "server-filesystem", {}),
        ("semel process", "rust-mcp-filesystem", {1: 1.0, 16: 1.0}),
        (power, "rust-mcp-filesystem", {}),
    ]:
        for in_flight in IN_FLIGHT:
            found, bar = ratios(ours, theirs, in_flight), bars.get(in_flight)
            verdict = "" if bar is None else "not measured" if not found else "holds" if statistics.median(found) >= bar else "MISSED"
            missed += verdict in ("MISSED", "not measured")
            wants = "" if bar is None else f">= {bar}"
            print(f"  {in_flight:>2} in flight: {ours} / {theirs:20} {wants:7} {spread(found)}  {verdict}")
    print(f"\n{missed} missed or not measured")


if __name__ == "__main__":
    sys.exit(main())
