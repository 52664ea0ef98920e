"""Certifies published projects with the real binary and prints a table; usage in scripts/projects.sh."""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from sources import NODE, PROJECTS, ROOT, TOOLS, Maker
from verifiers import NAMES, Judges

# Not below the repository: cargo takes a project there for a part of this one.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
LOCKS = ("uv.lock", "poetry.lock", "requirements.txt", "package-lock.json", "pnpm-lock.yaml", "yarn.lock", "Cargo.lock")
STAGES = ("fetch", "install", "record", "test", "verify")


def environment(place, yarn):
    """Gives the variables of a person who has all package managers on the PATH, and a home of their own."""
    own = place / ("bin-" + (re.sub(r"\W", "-", yarn) or "none"))
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    (own / "uv").symlink_to(TOOLS / "bin/uv")
    (own / "poetry").symlink_to(TOOLS / "poetry/bin/poetry")
    (own / "pnpm").symlink_to(NODE / "pnpm/bin/pnpm.cjs")
    if yarn:
        (own / "yarn").symlink_to(NODE / yarn)
    env = dict(os.environ)
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "SEMEL_JOB"):
        env.pop(name, None)
    home = place / "home"
    home.mkdir(exist_ok=True)
    rust = env.get("RUSTUP_HOME") or str(pathlib.Path.home() / ".rustup")
    env.update(PATH=f"{own}:{env['PATH']}", XDG_CONFIG_HOME=str(home / "config"), CARGO_HOME=str(place / "cargo"))
    env.update(RUSTUP_HOME=rust, PIP_CACHE_DIR=str(home / "pip"), UV_CACHE_DIR=str(home / "uv"))
    env.update(npm_config_cache=str(home / "npm"), POETRY_CACHE_DIR=str(home / "poetry"))
    return env


def git(repository, env, *args):
    command = ["git", "-C", str(repository), "-c", "user.name=p", "-c", "user.email=p@localhost", "-c", "core.autocrlf=false", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout.strip()


def toml(value):
    """Writes a value as TOML does, which for these is as JSON does."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {toml(inner)}" for name, inner in value.items()) + " }"
    return json.dumps(value)


def job_of(project, base):
    certify = {"install": [project.install], "test": project.test, "timeout": "15m"}
    if project.args:
        certify["install_args"] = {project.install: project.args}
    if project.build:
        certify["project"] = "unbound_backend"
    if project.caches:
        certify["caches"] = project.caches
    if project.env:
        certify["env"] = project.env
    lines = ['job = "project"', 'repository = "repository"', f'base = "{base}"', "[agent]", 'command = ["true"]', "[certify]"]
    return "\n".join(lines + [f"{name} = {toml(value)}" for name, value in certify.items()]) + "\n"


class Refused(Exception):
    """Says what was refused that ought not to be."""


def clear(scratch):
    """Ends the daemon of a state root, and frees its place."""
    about = scratch / "state/daemon.json"
    if about.is_file():
        pid = json.loads(about.read_text())["pid"]
        try:
            os.kill(pid, signal.SIGTERM)
            while pathlib.Path(f"/proc/{pid}").exists():
                time.sleep(0.05)
        except ProcessLookupError:
            pass
    mounts = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((at for at in mounts if at.startswith(f"{scratch}/")), reverse=True):
        subprocess.run(["umount", mount], check=True)
    shutil.rmtree(scratch, ignore_errors=not scratch.exists())


def certify(project, semel, place, scratch):
    """Takes one project from its archive to a passing gate; gives a row of the table."""
    env = environment(place, project.yarn)
    repository = scratch / "repository"
    # The name of the directory is the name of its lockfile in the cache.
    tree = scratch / re.sub(r"\W+", "-", project.name) / "tree"
    tree.parent.mkdir()
    project.make(Maker(place, env), tree)
    tree.rename(repository)
    git(repository, env, "init", "--quiet", "--initial-branch", "main")
    git(repository, env, "add", "--all")
    # Libraries often ignore the lock that a job needs.
    git(repository, env, "add", "--force", *[name for name in LOCKS if (repository / name).is_file()])
    git(repository, env, "commit", "--quiet", "--message", project.name)
    commit = git(repository, env, "rev-parse", "HEAD")
    (scratch / "job.toml").write_text(job_of(project, commit))

    def call(*args, code=0):
        done = subprocess.run([semel, "--state", scratch / "state", "--json", *map(str, args)], env=env, capture_output=True, text=True)
        if done.returncode != code:
            raise Refused(f"semel {args[0]}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return (json.loads(done.stdout), done.stderr) if done.stdout else ({}, done.stderr)

    call("key", "new")
    key, _ = call("key", "show")
    policy = subprocess.run([semel, "--state", scratch / "state", "key", "show", "--policy"], env=env, check=True, capture_output=True)
    (scratch / "gate.toml").write_bytes(policy.stdout)
    since = time.monotonic()
    done, said = call("certify", "--from", scratch / "job.toml", "--repository", repository, "--git", commit)
    took = time.monotonic() - since
    if "verify   locks, installed bytes and source tree" not in said:
        raise Refused(f"nothing was looked at after the tests\n{said}")
    judges = Judges(done, key, scratch, env)
    refused = {name: judges.judge(name) for name in NAMES}
    predicate = json.loads(judges.payload)["predicate"]
    if predicate["test_command"] != project.test:
        raise Refused("the certificate does not name the test command")
    gate = ["gate", "--record", done["install_record"], "--repository", repository, "--policy", scratch / "gate.toml", "--commit", commit]
    call(*gate, "--certificate", done["envelope"])
    bent = scratch / "bent.dsse.json"
    bent.write_bytes(judges.bent("securesystemslib")[1][0])
    call(*gate, "--certificate", bent, code=30)
    (record,) = json.loads(pathlib.Path(done["install_record"]).read_text())
    files = [entry["file"] for entry in record["entries"].values() if "file" in entry]
    if len(record["packages"]) < project.packages:
        raise Refused(f"{len(record['packages'])} packages are fewer than {project.packages}")
    times = {stage: re.search(rf"^{stage} .*?([\d.]+) s\b", said, re.M) for stage in STAGES}
    return {
        "said": said,
        "project": project.name,
        "installer": project.install,
        "packages": len(record["packages"]),
        "files": len(files),
        "megabytes": round(sum(file["size"] for file in files) / 1e6),
        "counts": predicate["report"]["counts"],
        "weak": sorted({weak["name"] for weak in predicate["weak"]}),
        "confinement": predicate["confinement"],
        "flips": sum(refused.values()) + 1,
        "times": {stage: float(found[1]) for stage, found in times.items() if found},
        "took": took,
    }


def shown(row):
    counts = row["counts"]
    times = ", ".join(f"{stage} {value:.1f}" for stage, value in row["times"].items())
    tests = f"{counts['passed']} passed, {counts['skipped']} skipped"
    size = f"{row['packages']} packages, {row['files']} files, {row['megabytes']} MB"
    return f"{row['project']:32} {row['installer']:6} {size:42} {tests:24} 5 of 5, {row['flips']} flips refused  {row['took']:6.1f} s ({times}) {','.join(row['weak'])}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("place", nargs="?", default=str(CACHE / "semel-projects"))
    args = parser.parse_args()
    semel = os.environ.get("SEMEL", str(ROOT / "target/release/semel"))
    place = pathlib.Path(args.place).resolve()
    place.mkdir(parents=True, exist_ok=True)
    chosen = [project for project in PROJECTS if args.only in project.name or args.only == project.install]
    if not chosen:
        raise SystemExit("no project has such a name")
    failed = 0
    for project in chosen:
        scratch = place / "run"
        clear(scratch)
        scratch.mkdir(mode=0o700)
        try:
            row = certify(project, semel, place, scratch)
            if args.verbose:
                print(row["said"], row["confinement"], sep="\n", file=sys.stderr)
            print(shown(row), flush=True)
            if project.left_out:
                print(f"{'':32} left out: {project.left_out}", flush=True)
        except Refused as why:
            failed += 1
            print(f"{project.name:32} REFUSED: {why}", flush=True)
        if not args.keep:
            clear(scratch)
    print(f"{len(chosen) - failed} of {len(chosen)} certified, verified by {', '.join(NAMES)} and semel gate; {failed} refused")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
