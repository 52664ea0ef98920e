"""Measures binding and offline installs of real projects beside their peers, and prints what was promised of it."""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/projects"))

import run as projects  # noqa: E402
from sources import NODE, TOOLS, Maker, of_cargo, of_npm, of_uv  # noqa: E402

CASES = {
    "svcs": (of_uv("svcs", "26.2.0"), "uv", 500),
    "minimist": (of_npm("minimist", "1.2.8"), "npm", 600),
    "hexyl": (of_cargo("hexyl", "0.16.0"), "cargo", 500),
}
FLOOR_RATIO, INSTALL_RATIO = 3.0, 1.1


class Bench:
    def __init__(self, place, scripts, rounds):
        self.place, self.scripts, self.rounds = place, scripts, rounds
        self.env = projects.environment(place, "")
        self.took = {}

    def run(self, command, cwd, **more):
        """Runs a command; gives its milliseconds and what it printed."""
        since = time.perf_counter()
        done = subprocess.run([str(part) for part in command], cwd=cwd, env={**self.env, **more}, capture_output=True, text=True)
        spent = (time.perf_counter() - since) * 1000
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return spent, done.stdout

    def keep(self, what, spent):
        self.took.setdefault(what, []).append(spent)

    def ours(self, installer, tree):
        """Installs and binds in a fresh generation."""
        state = self.place / "ours"
        (state / "state").mkdir(mode=0o700, parents=True, exist_ok=True)
        driver = ROOT / "target/release/examples/certify"
        _, said = self.run([driver, installer, tree, state, 5], self.place)
        size = None
        for line in map(json.loads, said.splitlines()):
            if "what" in line:
                self.keep(line["what"], line["ms"])
                for part in ("generation_ms", "fetch_ms", "installer_ms"):
                    if part in line and line["what"].startswith("warm"):
                        self.keep("warm: " + part[:-3], line[part])
            else:
                size = line
        return size

    def peer_install(self, installer, tree):
        """Times the tool's own install, by copies, from its warm cache and without a network."""
        if installer == "uv":
            shutil.rmtree(tree / ".venv", ignore_errors=True)
            command = [TOOLS / "bin/uv", "sync", "--locked", "--no-install-project"]
        elif installer == "npm":
            shutil.rmtree(tree / "node_modules", ignore_errors=True)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        else:
            shutil.rmtree(tree / "vendor", ignore_errors=True)
            command = ["cargo", "vendor", "--locked", "--quiet"]
        spent, _ = self.run(command + ([] if self.cold else ["--offline"]), tree, UV_LINK_MODE="copy")
        if not self.cold:
            self.keep(PEER[installer], spent)

    def looks(self, installer, tree):
        """Times what else looks at the installed tree."""
        installed = {"uv": ".venv", "npm": "node_modules", "cargo": "vendor"}[installer]
        into = self.place / "in-toto"
        if (into / "bin/in-toto-run").is_file():
            command = [into / "bin/in-toto-run", "-n", "bench", "-p", installed, "--signing-key", into / "key.pem", "-x"]
            self.keep("in-toto-run --products", self.run(command, tree)[0])
        if self.scripts:
            command, more = self.script(installer, tree)
            self.keep(f"script {pathlib.Path(command[1]).name}", self.run(command, tree, **more)[0])

    def script(self, installer, tree):
        if installer == "npm":
            return ["node", self.scripts / "npm_check.cjs", tree], {}
        if installer == "cargo":
            return ["python3", self.scripts / "crate_check.py", tree / "Cargo.lock", self.place / "cargo"], {}
        wheels = self.place / "wheels"
        if not wheels.is_dir():
            _, said = self.run([TOOLS / "bin/uv", "export", "--locked", "--quiet", "--no-emit-project", "--no-header"], tree)
            (self.place / "wheels.txt").write_text(said)
            options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-d", wheels]
            self.run(["python3", "-m", "pip", "download", *options, "-r", self.place / "wheels.txt"], tree)
        return ["python3", self.scripts / "wheel_check.py", tree / "uv.lock", tree / ".venv", wheels], {}

    def in_toto(self):
        """Makes an environment with in-toto, and a key for it."""
        into = self.place / "in-toto"
        if not (into / "key.pem").is_file():
            self.run(["python3", "-m", "venv", into], self.place)
            self.run([into / "bin/pip", "install", "--quiet", "in-toto==3.1.0"], self.place)
            self.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", into / "key.pem"], self.place)

    def pnpm(self, tree):
        """Times pnpm's look at its store; the tree is another copy, installed by pnpm."""
        pnpm, other = NODE / "pnpm/bin/pnpm.cjs", self.place / "pnpm"
        if not (other / "node_modules").is_dir():
            shutil.rmtree(other, ignore_errors=True)
            shutil.copytree(tree, other, ignore=shutil.ignore_patterns("node_modules"))
            self.run(["node", pnpm, "install", "--ignore-scripts", "--store-dir", self.place / "pnpm-store"], other)
        for _ in range(self.rounds):
            self.keep("pnpm store status", self.run(["node", pnpm, "store", "status", "--store-dir", self.place / "pnpm-store"], other)[0])

    def measure(self, name):
        make, installer, bar = CASES[name]
        self.took = {}
        tree = self.place / name / "tree"
        if not tree.is_dir():
            tree.parent.mkdir(exist_ok=True)
            make(Maker(self.place, self.env), tree)
        self.cold = True
        self.peer_install(installer, tree)
        self.cold = False
        # Without what the peers install.
        bare = self.place / name / "bare"
        shutil.rmtree(bare, ignore_errors=True)
        shutil.copytree(tree, bare, ignore=shutil.ignore_patterns(".venv", "node_modules", "vendor"))
        size = None
        for _ in range(self.rounds):
            size = self.ours(installer, bare)
            self.peer_install(installer, tree)
            try:
                self.looks(installer, tree)
            except RuntimeError as why:
                print(f"skipped: {why}")
        if installer == "npm":
            self.pnpm(tree)
        self.table(name, installer, bar, size)

    def ratio(self, one, other):
        """Gives the ratio of the least times, and the median of the rounds' ratios."""
        one, other = self.took[one], self.took[other]
        return min(one) / min(other), statistics.median(a / b for a, b in zip(one, other))

    def table(self, name, installer, bar, size):
        print(f"\n{name}: {size['packages']} packages, {size['files']} files, {size['bytes'] / 1e6:.0f} MB; load {load()}")
        print(f"  {'ms':44} {'least':>9} {'median':>9} {'n':>4}")
        for what, times in self.took.items():
            print(f"  {what:44} {min(times):9.1f} {statistics.median(times):9.1f} {len(times):4}")
        self.say("bind, least", min(self.took["bind"]), bar, "ms")
        self.say("bind / raw SHA-256 by one thread", self.ratio("bind", "floor")[0], FLOOR_RATIO, "x")
        least, median = self.ratio("warm: generation, fetch, install", PEER[installer])
        self.say(f"fresh generation and install / {PEER[installer]}", least, INSTALL_RATIO, f"x (median of rounds {median:.2f})")
        for what in self.took:
            if what.startswith(("in-toto", "pnpm", "script")):
                print(f"          bind / {what}: {min(self.took['bind']) / min(self.took[what]):.2f}")

    def say(self, what, value, bar, unit):
        print(f"  {'held  ' if value <= bar else 'MISSED'}  {what}: {value:.2f} {unit} (bar {bar})")


PEER = {"uv": "uv sync --offline, copies", "npm": "npm ci --offline", "cargo": "cargo vendor --offline"}


def load():
    return " ".join(pathlib.Path("/proc/loadavg").read_text().split()[:3])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=sorted(CASES))
    parser.add_argument("--scripts", type=pathlib.Path)
    parser.add_argument("place", nargs="?", type=pathlib.Path, default=projects.CACHE / "semel-bench-certify")
    args = parser.parse_args()
    place = args.place.resolve()
    place.mkdir(parents=True, exist_ok=True)
    print(f"machine  {os.cpu_count()} cores, load {load()}, kernel {os.uname().release}")
    bench = Bench(place, args.scripts and args.scripts.resolve(), args.rounds)
    try:
        bench.in_toto()
    except RuntimeError as why:
        print(f"skipped: in-toto-run: {why}")
    for name in [args.only] if args.only else CASES:
        bench.measure(name)


main()
