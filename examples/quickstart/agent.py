"""Mends the greeting through the gateway: the standard library alone, no model.

The write is sent twice with one key, as after a lost answer: one effect, and the second answer says `replayed`.
"""

import json
import os
import urllib.request


def call(tool, arguments, key=None):
    headers = {"Authorization": f"Bearer {os.environ['SEMEL_TOKEN']}", "Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = f'"{key}"'
    url = f"{os.environ['SEMEL_URL']}/v1/tools/{tool}"
    request = urllib.request.Request(url, json.dumps(arguments).encode(), headers)
    # A proxy of the machine is not for the gateway.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        return json.load(answer)


before = call("read_file", {"path": "src/lib.rs"})
write = {
    "path": "src/lib.rs",
    "content": before["content"].replace('"Hello {name}"', '"Hello, {name}"'),
    "expected_sha256": before["sha256"],
}
first = call("write_file", write, key="mend-the-greeting")
again = call("write_file", write, key="mend-the-greeting")
assert not first["replayed"] and again["replayed"], (first, again)
assert first["execution_id"] == again["execution_id"], "one effect, two answers"
