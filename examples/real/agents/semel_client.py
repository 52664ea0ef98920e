"""A plain HTTP client of the tool gateway: the standard library alone, no model.

Every mutating call carries an idempotency key; a lost answer is fetched again by sending the same call with
the same key.
"""

import base64
import http.client
import json
import os
import time
import urllib.parse

URL = urllib.parse.urlsplit(os.environ["SEMEL_URL"])
TOKEN = os.environ["SEMEL_TOKEN"]


class Refused(Exception):
    """The gateway refused a call; `code` is its name in the error table."""

    def __init__(self, status, problem):
        super().__init__(f"{problem.get('code')}: {problem.get('detail')}")
        self.status, self.problem, self.code = status, problem, problem.get("code")


def request(method, path, body=None, key=None, token=TOKEN):
    """Sends one request; tries again with the same key while the answer is lost or the first call is running."""
    headers = {"Authorization": f"Bearer {token}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if key is not None:
        headers["Idempotency-Key"] = f'"{key}"'
    for _ in range(50):
        try:
            connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            result = json.loads(answer.read() or b"{}")
        except OSError:
            time.sleep(0.2)
            continue
        finally:
            connection.close()
        if answer.status < 300:
            return result
        if result.get("code") not in ("call_in_flight", "too_many", "draining", "store_unavailable"):
            raise Refused(answer.status, result)
        time.sleep(float(answer.headers.get("Retry-After", "1")))
    raise SystemExit("the gateway gave no definite answer")


def call(tool, arguments, key=None):
    return request("POST", f"/v1/tools/{tool}", arguments, key)


def read(path):
    answer = call("read_file", {"path": path})
    content = answer["content"]
    data = base64.b64decode(content) if answer["encoding"] == "base64" else content.encode()
    return data, answer["sha256"]


def write(path, data, expected, key):
    content = {"content_b64": base64.b64encode(data).decode()}
    return call("write_file", {"path": path, "expected_sha256": expected, **content}, key)
