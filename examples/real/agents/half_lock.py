"""Misbehaves: leaves half a lockfile behind, and never ends."""

import time

from semel_client import read, write

lock, digest = read("uv.lock")
write("uv.lock", lock[: len(lock) * 2 // 5], digest, key="half")
print("half a lockfile is written; waiting for ever", flush=True)
while True:
    time.sleep(60)
