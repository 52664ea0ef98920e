"""Published projects, fetched by the ordinary client of their registry, and how each is certified.

A project whose archive brings no lockfile gets one from its own tool. What a job leaves out of the project's own tests
stands in its test command, which the certificate names, and is told here why.
"""

import json
import pathlib
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, field
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools"
NODE = TOOLS / "node/node_modules"


@dataclass
class Project:
    """One project: how its tree is made, and the recipe of its job."""

    name: str
    make: Callable[["Maker", pathlib.Path], None]
    install: str
    test: list[str]
    args: list[str] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)
    build: bool = False
    left_out: str = ""
    packages: int = 1
    yarn: str = ""
    env: dict[str, str] = field(default_factory=dict)


class Maker:
    """Runs the clients, each with a home of its own below `place`."""

    def __init__(self, place, env):
        self.place, self.env = place, env
        self.cache = place / "fetched"
        self.cache.mkdir(parents=True, exist_ok=True)

    def run(self, command, cwd, **more):
        """Runs a client; what it says is shown only where it fails."""
        done = subprocess.run([str(part) for part in command], cwd=cwd, env={**self.env, **more}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def unpack(self, archive, tree):
        """Unpacks what one directory of an archive holds."""
        with tarfile.open(archive) as whole:
            whole.extractall(tree.parent / "unpacked", filter="data")
        (inner,) = (tree.parent / "unpacked").iterdir()
        inner.rename(tree)
        (tree.parent / "unpacked").rmdir()

    def sdist(self, name, version, tree):
        stem = re.sub(r"[-.]", "_", name)
        archive = self.cache / f"{stem}-{version}.tar.gz"
        if not archive.is_file():
            options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", self.cache]
            self.run(["python3", "-m", "pip", "download", *options, f"{name}=={version}"], self.cache)
        self.unpack(archive, tree)

    def npm(self, name, version, tree):
        archive = self.cache / f"{name}-{version}.tgz"
        if not archive.is_file():
            self.run(["npm", "pack", f"{name}@{version}"], self.cache)
        self.unpack(archive, tree)

    def crate(self, name, version, tree):
        archive = self.cache / f"{name}-{version}.crate"
        if not archive.is_file():
            # cargo fetches what a package depends on.
            asks = self.cache / f"ask-{name}"
            (asks / "src").mkdir(parents=True, exist_ok=True)
            (asks / "src/lib.rs").write_text("")
            manifest = f'[package]\nname = "asks"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\n{name} = "={version}"\n'
            (asks / "Cargo.toml").write_text(manifest)
            self.run(["cargo", "fetch"], asks)
            (found,) = (self.place / "cargo").glob(f"registry/cache/*/{name}-{version}.crate")
            shutil.copy(found, archive)
        self.unpack(archive, tree)

    def lock(self, tree, name, command, **more):
        """Makes a lockfile that the archive did not bring, once; it is kept beside the archives."""
        kept = self.cache / f"lock-{tree.parent.name}-{name}"
        if not kept.is_file():
            self.run(command, tree, **more)
            shutil.copy(tree / name, kept)
            for left in (".venv", "node_modules"):
                shutil.rmtree(tree / left, ignore_errors=True)
        shutil.copy(kept, tree / name)


def of_uv(name, version):
    return lambda maker, tree: maker.sdist(name, version, tree)


def inline_snapshot(maker, tree):
    maker.sdist("inline-snapshot", "0.36.1", tree)
    # What its plugin writes whenever tests run is no part of its repository, but of the archive.
    (tree / ".inline-snapshot/files_using_external.txt").unlink()


def humanize(maker, tree):
    """Its version, and a module that its build writes and git does not track, come from hatch-vcs."""
    maker.sdist("humanize", "4.14.0", tree)
    assert "src/*/_version.py" in (tree / ".gitignore").read_text()
    (tree / "src/humanize/_version.py").unlink()
    maker.lock(tree, "uv.lock", [TOOLS / "bin/uv", "lock"])


def cleo(maker, tree):
    maker.sdist("cleo", "2.1.0", tree)
    # An index of the simple kind, which every mirror has; Poetry asks the public one for more.
    default = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    index = maker.env.get("PIP_INDEX_URL") or maker.run(["python3", "-c", default], tree).strip()
    poetry = TOOLS / "poetry/bin/poetry"
    maker.run([poetry, "source", "add", "--priority=primary", "simple", index.rstrip("/") + "/"], tree)
    maker.lock(tree, "poetry.lock", [poetry, "lock", "--no-interaction"])


def sqlparse(maker, tree):
    maker.sdist("sqlparse", "0.5.3", tree)
    (tree / "requirements.in").write_text("pytest==8.4.2\n")
    command = [TOOLS / "bin/uv", "pip", "compile", "--quiet", "--generate-hashes", "requirements.in", "-o", "requirements.txt"]
    maker.lock(tree, "requirements.txt", command)


def of_npm(name, version):
    def make(maker, tree):
        maker.npm(name, version, tree)
        options = ["--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"]
        # With addresses, as npm writes them where nobody told it otherwise.
        more = {"npm_config_omit_lockfile_registry_resolved": "false"}
        maker.lock(tree, "package-lock.json", ["npm", "install", *options], **more)

    return make


def of_pnpm(name, version):
    def make(maker, tree):
        maker.npm(name, version, tree)
        maker.lock(tree, "pnpm-lock.yaml", ["node", NODE / "pnpm/bin/pnpm.cjs", "install", "--lockfile-only"])

    return make


def of_yarn(name, version):
    def make(maker, tree):
        maker.npm(name, version, tree)
        options = ["install", "--ignore-scripts", "--non-interactive"]
        maker.lock(tree, "yarn.lock", ["node", NODE / "yarn/bin/yarn.js", *options])

    return make


def of_berry(name, version):
    def make(maker, tree):
        maker.npm(name, version, tree)
        (tree / ".yarnrc.yml").write_text("nodeLinker: node-modules\n")
        # Else it takes the tree for a part of a project further up.
        (tree / "yarn.lock").write_text("")
        command = ["node", NODE / "@yarnpkg/cli-dist/bin/yarn.js", "install", "--mode=update-lockfile"]
        maker.lock(tree, "yarn.lock", command)
        shutil.rmtree(tree / ".yarn", ignore_errors=True)

    return make


def of_cargo(name, version):
    def make(maker, tree):
        maker.crate(name, version, tree)
        if not (tree / "Cargo.lock").is_file():
            maker.lock(tree, "Cargo.lock", ["cargo", "generate-lockfile"])

    return make


def vendored(maker, tree):
    maker.crate("hexyl", "0.16.0", tree)
    settings = maker.run(["cargo", "vendor", "--locked", "--quiet"], tree)
    (tree / ".cargo").mkdir(exist_ok=True)
    (tree / ".cargo/config.toml").write_text(settings)


def cargo_lock(maker, tree):
    """A crate whose tests read lockfiles that it brings."""
    maker.crate("cargo-lock", "10.1.0", tree)
    assert (tree / "tests/examples/Cargo.lock").is_file()


def cc(maker, tree):
    """A crate with a module in a directory of the name `target`."""
    of_cargo("cc", "1.2.41")(maker, tree)
    assert (tree / "src/target").is_dir()


TAP = ["sh", "-c"]

PROJECTS = [
    Project("svcs 26.2.0", of_uv("svcs", "26.2.0"), "uv", ["python", "-m", "pytest"], build=True, packages=50),
    Project(
        "attrs 26.1.0",
        of_uv("attrs", "26.1.0"),
        "uv",
        ["python", "-m", "pytest", "--deselect", "tests/test_converters.py::TestPipe::test_wrapped_annotation"],
        args=["--group", "tests"],
        build=True,
        left_out="test_wrapped_annotation fails on any clean tree",
    ),
    Project("inline-snapshot 0.36.1", inline_snapshot, "uv", ["python", "-m", "pytest", "--inline-snapshot=disable", "tests/test_string.py"], build=True),
    Project("dirty-equals 0.11", of_uv("dirty-equals", "0.11"), "uv", ["python", "-m", "pytest"]),
    Project("humanize 4.14.0, hatch-vcs", humanize, "uv", ["python", "-m", "pytest"], args=["--extra", "tests"], build=True),
    Project("cleo 2.1.0", cleo, "poetry", ["python", "-m", "pytest", "-o", "pythonpath=src"]),
    Project("sqlparse 0.5.3, hashes", sqlparse, "pip", ["python", "-m", "pytest"]),
    Project("minimist 1.2.8", of_npm("minimist", "1.2.8"), "npm", TAP + ["tape 'test/**/*.js' > {report}"], packages=500),
    Project("is-core-module 2.16.1", of_pnpm("is-core-module", "2.16.1"), "pnpm", TAP + ["tape 'test/**/*.js' > {report}"]),
    Project("function-bind 1.1.1", of_yarn("function-bind", "1.1.1"), "yarn", TAP + ["tape 'test/*.js' > {report}"], yarn="yarn/bin/yarn.js"),
    Project("object-inspect 1.13.2", of_berry("object-inspect", "1.13.2"), "yarn", TAP + ["tape 'test/*.js' > {report}"], yarn="@yarnpkg/cli-dist/bin/yarn.js"),
    Project("hexyl 0.16.0, vendored", vendored, "cargo", ["cargo", "test"]),
    Project("cargo-lock 10.1.0, fixture locks", cargo_lock, "cargo", ["cargo", "test"]),
    Project("cc 1.2.41, src/target", cc, "cargo", ["cargo", "test", "--lib"]),
]
