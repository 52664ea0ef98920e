"""Lets tools that know nothing of Semel judge the files of one certificate, as they are and with one byte flipped."""

import base64
import json
import subprocess

from sources import NODE, ROOT, TOOLS

EXAMPLES = ROOT / "examples/verify"
NAMES = ["securesystemslib", "OpenSSL", "@sigstore/verify", "ssh-keygen -Y verify"]


def flipped(text, field, at):
    """Gives the text of a file with one byte of one base64 field changed to another one of its alphabet.

    >>> flipped(b'{"a": "QUJDRA==", "b": "RVVVRA=="}', lambda value: value["b"], 0.5)
    b'{"a": "QUJDRA==", "b": "RVBVRA=="}'
    """
    value = field(json.loads(text))
    place = text.index(json.dumps(value)[1:-1].encode()) + int(at * (len(value.rstrip("=")) - 1))
    other = b"B" if text[place : place + 1] != b"B" else b"E"
    return text[:place] + other + text[place + 1 :]


class Judges:
    """Is what one certificate is judged with: its files, the key, and room for copies."""

    def __init__(self, done, key, place, env):
        self.done, self.place, self.env = done, place, env
        self.pem, self.signers = place / "key.pem", place / "allowed_signers"
        self.pem.write_text(key["pem"])
        self.signers.write_text(f"semel {key['ssh'].strip()}\n")
        with open(done["envelope"], "rb") as file:
            self.envelope = file.read()
        # The other two lie beside it.
        stem = done["envelope"].removesuffix(".dsse.json")
        with open(stem + ".sigstore.json", "rb") as file:
            self.bundle = file.read()
        with open(stem + ".sig", "rb") as file:
            self.ssh = file.read()
        self.payload = base64.b64decode(json.loads(self.envelope)["payload"])

    def run(self, command, stdin=b"", **more):
        command = [str(part) for part in command]
        return subprocess.run(command, input=stdin, capture_output=True, env={**self.env, **more})

    def accepts(self, name, text, payload):
        """Says whether one of them takes these bytes; one that cannot be run at all is an error."""
        copy = self.place / "judged"
        copy.write_bytes(text)
        if name == "securesystemslib":
            done = self.run([TOOLS / "bin/python", EXAMPLES / "verify_dsse.py", copy, self.pem])
        elif name == "OpenSSL":
            done = self.run(["sh", EXAMPLES / "verify_openssl.sh", copy, self.pem])
        elif name == "@sigstore/verify":
            done = self.run(["node", EXAMPLES / "verify_sigstore.cjs", copy, self.pem], NODE_PATH=str(NODE))
        else:
            options = ["-I", "semel", "-n", "certification@semel.dev", "-f", self.signers, "-s", copy]
            done = self.run(["ssh-keygen", "-Y", "verify", *options], payload)
            assert done.returncode in (0, 255), done
            return done.returncode == 0
        assert done.returncode in (0, 1), done
        assert (done.returncode == 0) == (done.stdout.strip() == payload), done
        return done.returncode == 0

    def bent(self, name):
        """Lists copies with one byte flipped: in the statement, and in each signature."""
        if name == "ssh-keygen -Y verify":
            lines = self.ssh.split(b"\n")
            middle = len(lines) // 2
            changed = [b"B" if lines[middle][10:11] != b"B" else b"E"]
            lines[middle] = lines[middle][:10] + changed[0] + lines[middle][11:]
            other = bytearray(self.payload)
            other[len(other) // 2] ^= 1
            return [(b"\n".join(lines), self.payload), (self.ssh, bytes(other))]
        if name == "@sigstore/verify":
            whole, inner = self.bundle, lambda value: value["dsseEnvelope"]
        else:
            whole, inner = self.envelope, lambda value: value
        fields = [(lambda value: inner(value)["payload"], at) for at in (0.02, 0.5, 0.98)]
        fields.append((lambda value: inner(value)["signatures"][0]["sig"], 0.3))
        return [(flipped(whole, field, at), self.payload) for field, at in fields]

    def judge(self, name):
        """Gives how many bent copies were refused; an error where the whole is refused or a bent one is taken."""
        whole = {"ssh-keygen -Y verify": self.ssh, "@sigstore/verify": self.bundle}.get(name, self.envelope)
        if not self.accepts(name, whole, self.payload):
            raise SystemExit(f"{name} refuses the certificate {self.done['envelope']}")
        bent = self.bent(name)
        for text, payload in bent:
            if self.accepts(name, text, payload):
                raise SystemExit(f"{name} takes a copy of {self.done['envelope']} with one byte flipped")
        return len(bent)
