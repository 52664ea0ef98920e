"""What is counted of ours rather than raced: syncs of a call and of replays, recovery, memory, size, and many keys."""
import http.client, json, os, re, shutil, signal, statistics, subprocess, tempfile, time
from pathlib import Path

import chain
from systems import LOAD, RELEASE, Semel, Skipped, load

SYNCS = "fsync,fdatasync,syncfs,sync_file_range,msync"
# A sync that found nothing to do is faster than this, in seconds.
NOTHING = 50e-6
# What need not be synced before an answer is synced behind it every half second; in seconds, with some room.
CLOCK = 0.4


class Traced:
    """strace on every thread of a process, for as long as this lives."""

    def __init__(self, pid, file):
        if shutil.which("strace") is None:
            raise Skipped("no strace")
        argv = ["strace", "-ttt", "-T", "-f", "-q", "-e", f"trace={SYNCS}", "-e", "signal=none", "-o", str(file), "-p", str(pid)]
        self.file = file
        self.strace = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        # It says nothing with -q once it is attached; a thread that is traced says so itself.
        since = time.monotonic()
        while not all(traced(pid, task) for task in os.listdir(f"/proc/{pid}/task")):
            if self.strace.poll() is not None or time.monotonic() - since > 20:
                raise Skipped(f"strace does not attach: {self.strace.stderr.read().strip()[:100]}")
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.strace.send_signal(signal.SIGINT)
        self.strace.wait(20)

    def read(self):
        return self.file.read_text()


def traced(pid, task):
    try:
        status = Path(f"/proc/{pid}/task/{task}/status").read_text()
    except OSError:
        return True  # It ended meanwhile.
    return re.search(r"^TracerPid:\s+[1-9]", status, re.M) is not None


class Fresh:
    """Our gateway on a state root of its own, for one measurement."""

    def __init__(self, place, durability):
        self.home, self.system = place / "fact", Semel(durability, ())

    def __enter__(self):
        shutil.rmtree(self.home, ignore_errors=True)
        self.system.start(self.home)
        return self.system

    def __exit__(self, *_):
        self.system.stop()
        shutil.rmtree(self.home, ignore_errors=True)


def calls(system, **options):
    more = [text for name, value in options.items() for text in (f"--{name}", value)]
    return load("http", *more, *system.args(options.get("op", "delete")), timeout=3600)


def send(system, op, path, key):
    """Sends one call; gives when it was sent and when its answer was there."""
    url = system.volume["url"].removeprefix("http://")
    connection = http.client.HTTPConnection(url, timeout=60)
    connection.connect()
    body = {"path": path} if op == "delete" else {"path": path, "content": "x"}
    headers = {"Authorization": f"Bearer {system.volume['token']}", "Idempotency-Key": key, "Content-Type": "application/json"}
    since = time.time()
    connection.request("POST", f"/v1/tools/{op}_file", json.dumps(body), headers)
    answer = connection.getresponse()
    said = answer.read()
    until = time.time()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{op} was answered with {answer.status}: {said[:200]}")
    return since, until


def one_call(place, power):
    """Gives, for single calls with nobody else about, the chain of syncs between request and answer, and the same of those
    syncs alone that took longer than a disk needs to do nothing."""
    chains = {}
    with Fresh(place, power) as system:
        tree = Path(system.volume["tree"])
        for op in ("delete", "write"):
            chains[op] = []
            for n in range(10):
                path = f"one-{op}-{n}"
                if op == "delete":
                    (tree / path).write_text("x")
                file = Path(tempfile.mkstemp(prefix="semel-strace-")[1])
                with Traced(system.processes[0].pid, file) as trace:
                    since, until = send(system, op, path, path)
                found = [sync for sync in chain.syncs(trace.read()) if since <= sync[0] <= until]
                chains[op].append((chain.longest(found), chain.longest([s for s in found if s[1] - s[0] > NOTHING])))
                file.unlink()
    return chains


def replays(place, power):
    """Counts syncs while replays, and nothing else, come in: those that keep the clock of the log, which is synced behind
    the answers, and those that come sooner."""
    with Fresh(place, power) as system:
        # Each client's one call is made here; what is traced are replays alone.
        how = dict(op="delete", mode="replay", clients=16, prefix="again")
        calls(system, seconds=0.1, **how)
        time.sleep(2 * CLOCK)
        file = Path(tempfile.mkstemp(prefix="semel-strace-")[1])
        with Traced(system.processes[0].pid, file) as trace:
            row = calls(system, seconds=4, **how)
        starts = [start for start, _, _ in chain.syncs(trace.read())]
        file.unlink()
        others = sum(later - sooner < CLOCK for sooner, later in zip(starts, starts[1:]))
        return len(starts) - others, others, row["replayed"]


def recovery(place, rows=100_000, flying=64):
    """Fills a journal, kills the daemon while calls are between effect and receipt, and times the next start."""
    home = place / "fact"
    with Fresh(place, "process") as system:
        entries = lambda: system.cli(home, "status")["journal"]["entries"]
        while entries() < rows:
            calls(system, op="write", clients=64, seconds=5, files=2000, bytes=1, prefix=f"fill-{entries()}")
        system.stop()
        # These calls stop after their effect, and the daemon dies under them.
        system.serve(home, "--pause-at", "acted:600000")
        wait_for(lambda: (home / "state/semel.sock").exists())
        system.open(home, "flying")
        argv = [LOAD, "http", "--clients", flying, "--seconds", 60, "--files", 1, "--prefix", "flying", *system.args("delete")]
        caller = subprocess.Popen([str(a) for a in argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        gone = lambda: sum(not (Path(system.volume["tree"]) / f"flying-c{c}/f0").exists() for c in range(flying))
        made = lambda: (Path(system.volume["tree"]) / f"flying-c{flying - 1}").exists()
        wait_for(lambda: made() and gone() == flying)
        running = system.cli(home, "status")["journal"]["running"]
        os.killpg(system.processes[-1].pid, signal.SIGKILL)
        system.processes[-1].wait()
        caller.kill()
        caller.wait()
        (home / "state/semel.sock").unlink(missing_ok=True)
        argv = [RELEASE / "semel", "--json", "--state", home / "state", "serve", "--listen", "127.0.0.1:0"]
        since = time.monotonic()
        process = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        system.processes.append(process)
        process.stdout.readline()
        took = time.monotonic() - since
        found = entries()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[1]
        recovered = next((line for line in said.splitlines() if line.startswith("recovered")), "recovered nothing")
    return took, found, running, recovered


def wait_for(what, seconds=60):
    since = time.monotonic()
    while not what():
        if time.monotonic() - since > seconds:
            raise RuntimeError("waited in vain")
        time.sleep(0.005)


def resident(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+)", status, re.M)[1]) / 1024


def memory(place):
    """Gives the resident MiB of daemon and probe, idle after some work."""
    with Fresh(place, "process") as system:
        calls(system, clients=16, seconds=2, files=500, prefix="work")
        time.sleep(3)
        daemon = system.processes[0].pid
        children = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
        return resident(daemon), sum(resident(pid) for pid in children)


def many_keys(place):
    """Gives median latencies at 1 and 16 clients with 10,000 keys and with 1,000,000 in one journal."""
    found = {}
    with Fresh(place, "process") as system:
        made = 0
        for keys in (10_000, 1_000_000):
            while made < keys:
                files = max(1, min(2000, (keys - made) // 64))
                made += calls(system, op="write", clients=64, seconds=600, files=files, bytes=1, prefix=f"fill-{made}")["calls"]
            for clients in (1, 16):
                rows = [calls(system, op="write", clients=clients, seconds=5, files=20_000, bytes=1, prefix=f"at-{keys}-{clients}-{n}") for n in range(3)]
                found[keys, clients] = statistics.median(row["p50_ms"] for row in rows)
                made += sum(row["calls"] for row in rows)
    return found


def all_of(place, power, long):
    """Measures them all; gives the names of what is missed."""
    missed = []

    def tell(what, measured, holds):
        verdict = "" if holds is None else "holds" if holds else "MISSED"
        if holds is False:
            missed.append(what)
        print(f"  {what:56} {measured}  {verdict}", flush=True)

    def attempt(what, measure):
        try:
            measure()
        except (Skipped, RuntimeError, OSError) as e:
            missed.append(what)
            print(f"skipped: {what}: {e}", flush=True)

    print("\n== counted of ours")

    def chains():
        for op, found in one_call(place, power).items():
            whole, busy = [both[0] for both in found], [both[1] for both in found]
            tell(f"longest chain of syncs in one {op}, {power}: <= 3", f"median {statistics.median(whole):.0f}, most {max(whole)} of {len(found)} calls"
                 f" (of syncs over {NOTHING * 1e6:.0f} us: median {statistics.median(busy):.0f}, most {max(busy)})", max(whole) <= 3)

    def no_syncs():
        clock, others, count = replays(place, power)
        tell("syncs during replays: 0", f"{clock + others} during {count:,} replays: {clock} by the log's clock, {others} sooner, as around a checkpoint", clock + others == 0 and count > 0)

    def recovers():
        took, rows, running, said = recovery(place)
        tell("recovery of 100,000 rows with 64 in flight: < 2 s", f"{took:.2f} s, {rows:,} rows, {running} running; {said}", took < 2 and running == 64)

    def resides():
        daemon, probe = memory(place)
        tell("idle RSS: < 64 MB", f"{daemon:.1f} MiB, and {probe:.1f} MiB of the probe", daemon + probe < 61)

    def weighs():
        size = (RELEASE / "semel").stat().st_size / 1e6
        tell("binary: < 20 MB", f"{size:.1f} MB", size < 20)

    def keys():
        found = many_keys(place)
        for clients in (1, 16):
            few, many = found[10_000, clients], found[1_000_000, clients]
            tell(f"p50 at 1,000,000 keys / at 10,000, {clients} clients: <= 1.2", f"{many:.3f} ms / {few:.3f} ms = {many / few:.2f}", many / few <= 1.2)

    attempt("longest chain of syncs", chains)
    attempt("syncs during replays", no_syncs)
    attempt("recovery", recovers)
    attempt("idle RSS", resides)
    attempt("binary", weighs)
    if long:
        attempt("many keys", keys)
    else:
        print("  latency at 1,000,000 keys against 10,000 is measured with --long")
    return missed
