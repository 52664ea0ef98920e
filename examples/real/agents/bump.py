"""Bumps one development dependency and locks again, all through the gateway."""

import os
import pathlib
import subprocess
import sys

from semel_client import read, write

BEFORE, AFTER = b'"packaging>=25.0"', b'"packaging>=26.0"'

pyproject, pyproject_digest = read("pyproject.toml")
lock, lock_digest = read("uv.lock")
if BEFORE not in pyproject:
    sys.exit("pyproject.toml does not declare what is to be bumped")
bumped = pyproject.replace(BEFORE, AFTER)

# uv locks in a scratch directory; the tree is changed by the gateway alone.
scratch = pathlib.Path(os.environ["TMPDIR"]) / "lock"
(scratch / "dirty_equals").mkdir(parents=True)
(scratch / "dirty_equals" / "version.py").write_bytes(read("dirty_equals/version.py")[0])
(scratch / "README.md").write_bytes(read("README.md")[0])
(scratch / "pyproject.toml").write_bytes(bumped)
(scratch / "uv.lock").write_bytes(lock)
subprocess.run(["uv", "lock", "--quiet", "--python", sys.executable], cwd=scratch, check=True)
relocked = (scratch / "uv.lock").read_bytes()

for path, data, digest in (("uv.lock", relocked, lock_digest), ("pyproject.toml", bumped, pyproject_digest)):
    first = write(path, data, digest, key=f"bump-{path}")
    again = write(path, data, digest, key=f"bump-{path}")
    assert not first["replayed"] and again["replayed"], (first, again)
    assert first["execution_id"] == again["execution_id"], "one effect, two answers"
    print(f"{path}: {first['sha256_before'][:12]} -> {first['sha256_after'][:12]}, sent twice, one effect")
