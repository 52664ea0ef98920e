"""The patch step of the incident: updates requirements.txt, begins to rewrite uv.lock, and hangs after N bytes."""
import os, sys, time

lock, stop = sys.argv[1], int(sys.argv[2])
with open("requirements.txt", "w") as f:
    f.write("leaf==2.0\n")
with open(lock, "rb") as f:
    whole = f.read()
with open("uv.lock", "wb") as f:
    f.write(whole[:stop])
    f.flush()
    os.fsync(f.fileno())
    time.sleep(3600)
