"""How each system of the bench is built, started and spoken to. Peers are fetched by their own package managers into a
directory below target/ when the bench runs; one that cannot be had is said so, and why."""
import json, os, shutil, signal, socket, subprocess, sys, time, urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
RELEASE = REPOSITORY / "target/release"
FETCHED = REPOSITORY / "target/bench-once"
LOAD = RELEASE / "examples/load"
KEY = "idempotency-key: {key}"
DELETE = '{"path":"{path}"}'
WRITE = '{"path":"{path}","content":"{content}"}'
RESTATE = ("@restatedev/restate-server@1.7.12", "@restatedev/restate-sdk@1.17.2")
MCP = "0.4.5"


class Skipped(Exception):
    """Says why a system cannot be measured here."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(argv, why, **more):
    """Runs a command to its end; a failure is a reason to skip, with the last line that it said."""
    try:
        out = subprocess.run(argv, capture_output=True, text=True, **more)
    except OSError as e:
        raise Skipped(f"{why}: {e}") from e
    if out.returncode:
        said = [line for line in (out.stderr + out.stdout).splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower()] or said
        raise Skipped(f"{why}: {errors[0] if errors else f'exit {out.returncode}'}")
    return out.stdout


def load(*args, timeout=300):
    out = subprocess.run([str(a) for a in (LOAD, *args)], capture_output=True, text=True, timeout=timeout)
    if out.returncode:
        raise RuntimeError(f"the load generator: {out.stderr.strip()}")
    return json.loads(out.stdout)


class System:
    """One system; without places of its own it is measured in the first one. `start` gives a running one in a directory of its own; `stop` ends what it started."""

    name = ""
    places = ()
    ops = ("delete",)

    def __init__(self):
        self.processes = []

    def prepare(self):
        """Builds or fetches it."""

    def spawn(self, argv, directory, **env):
        log = open(directory / f"said-{len(self.processes)}.txt", "ab")
        process = subprocess.Popen([str(a) for a in argv], cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env={**os.environ, **env}, start_new_session=True)
        log.close()
        self.processes.append(process)
        return process

    def wait_for(self, port, seconds=60):
        since = time.monotonic()
        while time.monotonic() - since < seconds:
            if any(p.poll() is not None for p in self.processes):
                raise Skipped(f"{self.name} ended at once: {self.last_words()}")
            with socket.socket() as s:
                s.settimeout(1)
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.02)
        raise Skipped(f"{self.name} does not listen")

    def last_words(self):
        lines = [line for f in sorted(self.directory.glob("said-*.txt")) for line in f.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line.strip()), "nothing")[:200]

    def start(self, directory):
        self.directory = directory
        directory.mkdir(parents=True)
        (directory / "files").mkdir()
        self.up(directory)

    def stop(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        self.processes = []

    def args(self, op):
        """Gives the arguments that the load generator needs for this system."""
        raise NotImplementedError


class Semel(System):
    def __init__(self, durability, places):
        super().__init__()
        self.durability, self.places = durability, places
        self.name, self.ops = f"semel {durability}", ("delete", "write")

    def serve(self, directory, *more):
        argv = [RELEASE / "semel", "--quiet", "--json", "--state", directory / "state", "serve", "--listen", "127.0.0.1:0", *more]
        return self.spawn(argv, directory)

    def up(self, directory, *more):
        (directory / "semel.toml").write_text("")
        self.serve(directory, *more)
        since = time.monotonic()
        while not (directory / "state/semel.sock").exists():
            if self.processes[-1].poll() is not None or time.monotonic() - since > 60:
                raise Skipped(f"semel does not serve: {self.last_words()}")
            time.sleep(0.01)
        self.open(directory)

    def cli(self, directory, *args):
        argv = [RELEASE / "semel", "--quiet", "--json", "--state", directory / "state", *args]
        return json.loads(run([str(a) for a in argv], f"semel {' '.join(args)}"))

    def open(self, directory, job="bench"):
        self.volume = self.cli(directory, "volume", "open", job, "--durability", self.durability)

    def args(self, op):
        body = DELETE if op == "delete" else WRITE
        return ["--url", self.volume["url"], "--route", f"/v1/tools/{op}_file", "--root", self.volume["tree"], "--names", "relative",
                "--header", KEY, "--header", f"authorization: Bearer {self.volume['token']}", "--body", body]


class Plain(System):
    """A system with the bench's own route on a port."""

    def args(self, op):
        return ["--url", f"127.0.0.1:{self.port}", "--route", f"/{op}", "--root", self.directory / "files", "--header", KEY,
                "--body", DELETE if op == "delete" else WRITE]


class Baseline(Plain):
    ops = ("delete", "write")

    def __init__(self, synchronous, places):
        super().__init__()
        self.synchronous, self.places, self.name = synchronous, places, f"baseline {synchronous}"

    def up(self, directory):
        self.port = free_port()
        self.spawn([RELEASE / "examples/baseline", directory / "idem.db", self.port, self.synchronous], directory)
        self.wait_for(self.port)


def build(name):
    """Builds an adapter of a peer from its source, apart from the repository."""
    if shutil.which("cargo") is None:
        raise Skipped("no cargo")
    source = FETCHED / "src" / name
    shutil.copytree(HERE / "peers" / name, source, dirs_exist_ok=True)
    print(f"fetching and building {name} …", file=sys.stderr)
    run(["cargo", "build", "--quiet", "--release", "--manifest-path", source / "Cargo.toml", "--target-dir", FETCHED / "target"],
        f"{name} does not build")
    return FETCHED / "target/release" / f"bench-{name}"


class Effectfence(Plain):
    name = "effectfence"

    def prepare(self):
        self.program = build("effectfence")

    def up(self, directory):
        self.port = free_port()
        self.spawn([self.program, directory / "ledger.jsonl", self.port], directory)
        self.wait_for(self.port)


class Dbos(Plain):
    name = "dbos rust"

    def prepare(self):
        found = [p for p in [shutil.which("postgres"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")))] if p]
        if not found:
            raise Skipped("no PostgreSQL server here")
        self.bin = Path(found[-1]).parent
        self.program = build("dbos")

    def as_postgres(self, argv):
        """PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return argv
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *argv]

    def up(self, directory):
        data, port = directory / "pg", free_port()
        data.mkdir()
        if os.getuid() == 0:
            shutil.chown(data, "postgres", "postgres")
            for above in [directory, *directory.parents]:
                above.chmod(above.stat().st_mode | 0o011) if above != Path("/") else None
        run(self.as_postgres([str(self.bin / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres"]), "initdb", cwd="/")
        self.spawn(self.as_postgres([self.bin / "postgres", "-D", data, "-h", "127.0.0.1", "-p", port, "-k", data]), directory)
        self.wait_for(port)
        url = f"postgresql://postgres@127.0.0.1:{port}"
        psql = [str(self.bin / "psql"), "-d", f"{url}/postgres", "-c", "create database bench"]
        for attempt in range(50):
            try:
                run(psql, "create database", cwd="/")
                break
            except Skipped:
                if attempt == 49:
                    raise
                time.sleep(0.1)
        self.port = free_port()
        self.spawn([self.program, f"{url}/bench", self.port], directory)
        self.wait_for(self.port)


class Restate(System):
    name = "restate"

    def prepare(self):
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise Skipped("no npm or node")
        self.modules = FETCHED / "npm"
        self.modules.mkdir(parents=True, exist_ok=True)
        print("fetching restate …", file=sys.stderr)
        (self.modules / "package.json").write_text('{"private":true}')
        run(["npm", "install", "--silent", "--no-audit", "--no-fund", *RESTATE], "restate cannot be fetched", cwd=self.modules)
        found = sorted(self.modules.glob("node_modules/@restatedev/restate-server-linux-*/bin/restate-server"))
        if not found:
            raise Skipped("the package holds no server for this machine")
        self.server = found[0]
        shutil.copy(HERE / "peers/restate/handler.mjs", self.modules)

    def up(self, directory):
        handler, self.port, admin, node = (free_port() for _ in range(4))
        self.spawn(["node", self.modules / "handler.mjs"], directory, PORT=str(handler))
        env = {"RESTATE_DISABLE_TELEMETRY": "true", "RESTATE_BIND_IP": "127.0.0.1", "RESTATE_LISTEN_MODE": "tcp", "RUST_LOG": "error",
               "RESTATE_INGRESS__BIND_PORT": str(self.port), "RESTATE_ADMIN__BIND_PORT": str(admin), "RESTATE_BIND_PORT": str(node)}
        self.spawn([self.server, "--no-logo", "--node-name", "n1", "--base-dir", directory / "data"], directory, **env)
        self.wait_for(handler)
        since = time.monotonic()
        while True:
            ask = urllib.request.Request(f"http://127.0.0.1:{admin}/deployments", json.dumps({"uri": f"http://127.0.0.1:{handler}"}).encode(),
                                         {"content-type": "application/json"})
            try:
                urllib.request.urlopen(ask, timeout=10).read()
                break
            except OSError as e:
                if time.monotonic() - since > 60 or any(p.poll() is not None for p in self.processes):
                    raise Skipped(f"restate takes no deployment: {e}; {self.last_words()}") from e
                time.sleep(0.2)
        self.wait_for(self.port)

    def args(self, op):
        return ["--url", f"127.0.0.1:{self.port}", "--route", f"/fs/{op}", "--root", self.directory / "files", "--header", KEY, "--body", DELETE]


class McpFiles(System):
    """A file server of MCP, over its pipes: writes that are neither synced nor remembered."""

    name, ops = "rust-mcp-filesystem", ("stdio",)

    def prepare(self):
        self.program = FETCHED / "bin/rust-mcp-filesystem"
        if not self.program.exists():
            print("fetching and building rust-mcp-filesystem …", file=sys.stderr)
            run(["cargo", "install", "--quiet", "rust-mcp-filesystem", "--version", MCP, "--locked", "--root", FETCHED, "--target-dir",
                 FETCHED / "target"], "rust-mcp-filesystem does not build")

    def up(self, directory):
        pass

    def args(self, op):
        body = '{"name":"write_file","arguments":{"path":"{path}","content":"{content}"}}'
        return ["--root", self.directory / "files", "--body", body, "--", self.program, "--allow-write", self.directory / "files"]
