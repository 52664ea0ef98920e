#!/usr/bin/env python3
"""Verifies a log of Semel without any part of Semel: Python's standard library, and OpenSSL 3 for the signatures.

usage: verify_log.py JOURNAL.db [KEY CHECKPOINT...]

JOURNAL.db is a copy, such as semel backup makes; KEY is what semel log key prints. Checked are the chain of all
entries, that no key has two effects, and that the log still is what each signed checkpoint says. Prints what is
wrong, one fault a line. Exit 0: nothing. 1: something. 2: wrong usage.
"""
import base64, hashlib, json, pathlib, sqlite3, subprocess, sys, tempfile


def chain(journal):
    """Walks all entries; yields faults, and returns the digest of each place."""
    uri = pathlib.Path(journal).resolve().as_uri() + "?immutable=1"
    rows = sqlite3.connect(uri, uri=True).execute("SELECT seq, version, body, prev, hash FROM records ORDER BY seq")
    last, prev, digests, keys, effects = 0, bytes(32), {}, {}, {}
    for seq, version, body, stored_prev, stored in rows:
        head = stored_prev + seq.to_bytes(8, "big") + version.to_bytes(2, "big")
        if seq != last + 1:
            yield f"gap at entry {seq}"
        elif stored_prev != prev:
            yield f"unlinked at entry {seq}"
        elif hashlib.sha256(b"semel.chain.v1\0" + head + body.encode()).digest() != stored:
            yield f"changed at entry {seq}"
        last, prev, digests[seq] = seq, stored, stored
        try:
            record = json.loads(body)
        except ValueError:
            yield f"unreadable at entry {seq}"
            continue
        execution = record.get("execution_id")
        if record["kind"] == "call_intended":
            keys[execution] = json.dumps(record["scope"], sort_keys=True) + record["key"]
        elif record["kind"] == "call_receipted" and record["receipt"]["outcome"]["outcome"] == "done":
            if effects.setdefault(keys.get(execution), execution) != execution:
                yield f"second_effect at entry {seq}"
    return digests


def opened(note, name, public):
    """Verifies the signature of a note; gives its three lines."""
    text, signatures = note.rsplit("\n\n", 1)
    text += "\n"
    key_id = hashlib.sha256(name.encode() + b"\n\x01" + public).digest()[:4]
    for line in signatures.splitlines():
        dash, signer, coded = line.split(" ")
        raw = base64.b64decode(coded, validate=True)
        if (dash, signer, raw[:4]) == ("\u2014", name, key_id):
            with tempfile.TemporaryDirectory() as where:
                der = bytes.fromhex("302a300506032b6570032100") + public
                for file, content in (("key", der), ("text", text.encode()), ("sig", raw[4:])):
                    pathlib.Path(where, file).write_bytes(content)
                verify = "openssl pkeyutl -verify -pubin -keyform DER -inkey key -rawin -in text -sigfile sig"
                if subprocess.run(verify.split(), cwd=where, capture_output=True).returncode != 0:
                    raise ValueError("its signature does not hold")
            origin, size, head = text.splitlines()
            if origin != name:
                raise ValueError("it is of another log")
            return origin, int(size), base64.b64decode(head, validate=True)
    raise ValueError("it is not signed by the key")


def faults(journal, key, checkpoints):
    digests = yield from chain(journal)
    for file in checkpoints:
        name, _, coded = key.strip().split("+", 2)
        try:
            origin, size, head = opened(pathlib.Path(file).read_text(), name, base64.b64decode(coded)[1:])
        except ValueError as error:
            yield f"bad_checkpoint {file}: {error}"
            continue
        if digests.get(1, b"").hex() != origin.rsplit("/", 1)[1]:
            yield "other_log at entry 1"
        elif max(digests) < size:
            yield f"truncated at entry {max(digests) + 1}"
        elif digests.get(size) != head:
            yield f"rewritten at entry {size}"


if __name__ == "__main__":
    if len(sys.argv) == 1 or len(sys.argv) == 3:
        sys.exit(print(__doc__, file=sys.stderr) or 2)
    found = list(faults(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "", sys.argv[3:]))
    print("\n".join(found) if found else "no fault")
    sys.exit(1 if found else 0)
