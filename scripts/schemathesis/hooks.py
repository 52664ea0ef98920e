"""What Schemathesis has to know of Semel: where its socket is, and what the formats of its own stand for.

A format says what JSON Schema cannot, such as how many bytes a path may have; docs/tools.md says what each one is.
"""

import base64
import itertools
import os
import socket

import schemathesis
import urllib3.connection
from hypothesis import strategies as st
from schemathesis.specs.openapi import negative

SOCKET = os.environ["SEMEL_SOCKET"]
# A repository with a commit, and a place where nothing is.
PLACES = os.environ["SEMEL_PLACES"].split(":")


def over_the_socket(connection):
    """Connects to the operator's socket, whatever the URL says: administration is taken nowhere else."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(60)
    made.connect(SOCKET)
    return made


urllib3.connection.HTTPConnection._new_conn = over_the_socket

# Few names, so that calls meet each other's files; a few that lead nowhere; and what any filesystem has to bear.
NAMES = st.sampled_from(["a", "b", "c.txt", "dir", "..", ".", "~", ".git", "link", "", "e\u0301", "\u00e9", "\U0001f980", "-x", "a b"])
ANY_NAME = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), max_size=60)
PLAIN = st.sampled_from(["a", "b", "c.txt", "dir/a"])
PATH = PLAIN | st.lists(NAMES | ANY_NAME, min_size=1, max_size=5).map("/".join)
BYTES_PATH = st.lists(st.binary(max_size=40).map(lambda name: name.replace(b"\0", b"\1")), min_size=1, max_size=4)


# What a text of a format never is. Where nothing is said, a wrong one is not told from a right one here: a test of the
# crate holds those against the parser.
NEVER = {
    "semel-path": lambda text: "\0" in text or len(text.encode(errors="replace")) > 4096,
    "semel-command": lambda text: "\0" in text,
}


def format_of_ours(name, strategy):
    schemathesis.openapi.format(name, strategy)
    # Else any text at all is taken for a violation of a format that Schemathesis does not know.
    negative.STANDARD_FORMATS = frozenset({*negative.STANDARD_FORMATS, name})


def is_of_format(name, known=negative._standard_format_check):
    if not name.startswith("semel-"):
        return known(name)
    never = NEVER.get(name, lambda text: False)
    return lambda text: not never(text)


negative._standard_format_check = is_of_format

format_of_ours("semel-path", PATH)
format_of_ours("semel-after", PATH)
format_of_ours(
    "semel-path-b64",
    (BYTES_PATH.map(b"/".join) | PATH.map(str.encode)).map(lambda path: base64.b64encode(path).decode()),
)
format_of_ours(
    "semel-glob",
    st.lists(st.sampled_from(["*", "**", "?", "a", "[a-c]", "{a,b}", "*.txt", "\u00e9"]), min_size=1, max_size=4).map("/".join),
)
format_of_ours(
    "semel-expression",
    st.sampled_from(["", "a", "^x+$", "[a-z]{2,3}", r"\bfn\b", "(a|b)c", "\u00e9", "[[:alpha:]]", "(?i)x"]) | st.text("ab xyz", max_size=20),
)
format_of_ours(
    "semel-command",
    st.sampled_from(["true", "false", "exit 3", "echo x", "echo \u00e9 >&2", "printf '\\377'", "kill -9 $$", "pwd", "no-such-program", "sleep 0.05", "cat c.txt"]),
)
format_of_ours("semel-directory", st.sampled_from(PLACES))
format_of_ours("semel-repository", st.sampled_from(PLACES))

LINES = st.lists(st.text("ab xyz\u00e9", max_size=12), min_size=1, max_size=4)


def added(path, lines):
    return "".join([f"*** Add File: {path}\n", *(f"+{line}\n" for line in lines)])


def updated(path, lines):
    return "".join([f"*** Update File: {path}\n@@\n", *(f"-{line}\n+{line}!\n" for line in lines)])


OPERATIONS = st.lists(
    st.builds(added, PLAIN, LINES) | st.builds(updated, PLAIN, LINES) | PLAIN.map("*** Delete File: {}\n".format),
    min_size=1,
    max_size=3,
    unique_by=lambda one: one.split("\n")[0].split(": ")[1],
)
format_of_ours("semel-patch", OPERATIONS.map(lambda all: f"*** Begin Patch\n{''.join(all)}*** End Patch\n"))


CALLS = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    """Mends what is well-formed and cannot be meant, which no schema can say: a patch that expects something of a path
    that it does not touch, an edit that changes nothing, lines that end before they begin, an id of SHA-256 in a
    repository of SHA-1. And lets most calls reach the files: drawn keys are often those of earlier calls, and drawn digests those of no file."""
    body = case.body
    if case.meta is None or not case.meta.generation.mode.is_positive or not isinstance(body, dict):
        return
    tool = case.operation.definition.raw.get("operationId")
    call = next(CALLS)
    if "Idempotency-Key" in (case.headers or {}) and call % 4:
        case.headers["Idempotency-Key"] = f"call-{call}"
    if "expected_sha256" in body and call % 2:
        body = {name: value for name, value in body.items() if name != "expected_sha256"}
    elif tool == "apply_patch" and "expected_sha256" in body:
        expected = body["expected_sha256"].items()
        touched = {path: digest for path, digest in expected if f"File: {path}\n" in body["patch"]}
        body = {**body, "expected_sha256": touched}
    if tool == "edit_file" and "edits" in body:
        body = {**body, "edits": [changing(edit) for edit in body["edits"]]}
    elif tool == "edit_file":
        body = changing(body)
    elif tool == "admin_open_volume" and "git" in body:
        body = {**body, "git": {**body["git"], "commit": body["git"]["commit"][:40]}}
    elif tool == "read_file" and "view_range" in body:
        first, last = body["view_range"]
        body = {**body, "view_range": [first, last if last == -1 else max(first, last)]}
    elif tool == "read_file" and "end_line" in body:
        body = {**body, "end_line": max(body.get("offset", 1), body["end_line"])}
    case.body = body


def changing(edit):
    return {**edit, "new_string": edit["new_string"] + "!"} if edit["new_string"] == edit["old_string"] else edit
