"""A server of tools that does what a test wants of it. It keeps count of its effects in a file, one line each.

Usage: fake.py DIRECTORY [--modern] [--http]
"""

import http.server
import json
import os
import pathlib
import sys
import threading
import time

HERE = pathlib.Path(sys.argv[1])
MODERN = "--modern" in sys.argv
EFFECTS = HERE / "effects"
lock = threading.Lock()
extra = []

STARTS = HERE / "starts"
with STARTS.open("a") as starts:
    starts.write(f"{os.getpid()}\n")


def tool(name, **more):
    schema = {"type": "object", "properties": {"text": {"type": "string"}, "how": {"type": "string"}}}
    return {"name": name, "description": f"does {name}", "inputSchema": schema, **more}


def files():
    def schema(*names):
        return {"type": "object", "properties": {name: {"type": "string"} for name in names}}

    return [
        {"name": "write_file", "inputSchema": schema("path", "content")},
        {"name": "edit_file", "inputSchema": schema("path", "old_string", "new_string")},
    ]


def on_file(name, arguments):
    """Writes or edits a file, with no guard whatever."""
    place = HERE / arguments["path"]
    if name == "edit_file":
        with lock:
            text = place.read_text()
            if text.count(arguments["old_string"]) != 1:
                return {"result": {"content": [{"type": "text", "text": "not once"}], "isError": True}}
            place.write_text(text.replace(arguments["old_string"], arguments["new_string"]))
    else:
        place.write_text(arguments["content"])
    return {"result": {"content": [{"type": "text", "text": "done"}]}}


def tools():
    reads = {"annotations": {"readOnlyHint": True}} if (HERE / "flip").exists() else {}
    own = {"type": "object", "properties": {"text": {"type": "string"}, "idempotency_key": {"type": "string"}}}
    return [
        tool("note", **reads, outputSchema={"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}),
        tool("look", annotations={"readOnlyHint": True, "title": "Look"}),
        tool("odd.name/here"),
        tool("own", inputSchema=own),
        *(files() if "--files" in sys.argv else []),
        *extra,
    ]


def effect(text):
    with lock, EFFECTS.open("a") as effects:
        effects.write(text + "\n")
    return len(EFFECTS.read_text().splitlines())


def wait_for(name):
    """Says that it has come so far, and waits until the test lets it go."""
    (HERE / f"{name}.here").touch()
    while not (HERE / f"{name}.go").exists():
        time.sleep(0.002)


def call(params, send, ident):
    """Gives what is answered, or None for nothing."""
    with lock, (HERE / "seen").open("a") as seen:
        seen.write(json.dumps(params) + "\n")
    name, arguments = params["name"], params.get("arguments", {})
    how, text = arguments.get("how", ""), arguments.get("text", "")
    if name == "look":
        if how == "huge":
            return {"result": {"content": [{"type": "text", "text": "x" * 6_000_000}]}}
        if how == "die_once" and len(STARTS.read_text().splitlines()) == 1:
            os._exit(1)
        count = len(EFFECTS.read_text().splitlines()) if EFFECTS.exists() else 0
        return {"result": {"content": [{"type": "text", "text": str(count)}]}}
    if name in ("write_file", "edit_file"):
        return on_file(name, arguments)
    if name not in ("note", "odd.name/here", "own", "new"):
        return {"error": {"code": -32602, "message": f"no tool {name}"}}
    if how == "die_before":
        os._exit(1)
    if how == "die_before_once" and len(STARTS.read_text().splitlines()) == 1:
        os._exit(1)
    if how == "wait_before":
        wait_for("before")
    count = effect(text)
    if how == "die_after":
        os._exit(1)
    if how == "late":
        wait_for("late")
    if how == "never":
        return None
    result = {
        "content": [{"type": "text", "text": f"{text} {count}"}],
        "structuredContent": {"count": count},
        "_meta": {"theirs": 1, "dev.semel/replayed": True},
    }
    if how == "error":
        return {"error": {"code": -32050, "message": "it failed", "data": {"count": count}}}
    if how == "tool_error":
        return {"result": {"content": [{"type": "text", "text": "no"}], "isError": True}}
    if how == "input":
        return {"result": {"resultType": "input_required", "inputRequests": {}, "requestState": "x"}}
    if how == "huge":
        result["content"][0]["text"] = "x" * 6_000_000
    if how == "wrong_id":
        send({"jsonrpc": "2.0", "id": 987654, "result": result})
        send({"jsonrpc": "2.0", "id": str(ident), "result": result})
        return None
    if how == "garbage":
        send("this is no message")
        send([1, None, "x"])
        send({"jsonrpc": "2.0", "id": ident})
        send({"jsonrpc": "2.0", "id": 5555, "method": "sampling/createMessage", "params": {}})
    if how == "twice":
        send({"jsonrpc": "2.0", "id": ident, "result": result})
        effectless = dict(result, content=[{"type": "text", "text": "the second answer"}])
        return {"result": effectless}
    if how == "progress":
        token = params["_meta"]["progressToken"]
        message = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
        send({"jsonrpc": "2.0", "method": "notifications/progress", "params": message})
        send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
        wait_for("progress")
    if how == "task":
        return {"result": {"resultType": "task", "taskId": "t", "status": "working"}}
    if how == "bare":
        del result["content"]
    if how == "grow":
        extra.append(tool("new"))
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    if how == "endless":
        sys.stdout.write("y" * 40_000_000)
        sys.stdout.flush()
        time.sleep(1000)
    return {"result": result}


def answer(message, send):
    method, ident, params = message.get("method"), message.get("id"), message.get("params", {})
    if ident is None or method is None:
        return None
    if method == "initialize" and not MODERN:
        told = {"result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                           "serverInfo": {"name": "fake", "version": "1"}}}
    elif MODERN and "io.modelcontextprotocol/protocolVersion" not in params.get("_meta", {}):
        told = {"error": {"code": -32602, "message": "every request says its revision"}}
    elif method == "server/discover" and MODERN:
        told = {"result": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}}
    elif method == "tools/list" and (HERE / "list").exists():
        told = {"result": json.loads((HERE / "list").read_text())}
    elif method == "tools/list":
        # Two pages.
        listed = tools()
        if params.get("cursor") is None:
            told = {"result": {"tools": listed[:2], "nextCursor": "2"}}
        else:
            told = {"result": {"tools": listed[2:]}}
    elif method == "tools/call":
        told = call(params, send, ident)
    else:
        told = {"error": {"code": -32601, "message": f"no method {method}"}}
    return told and {"jsonrpc": "2.0", "id": ident, **told}


def stdio():
    writing = threading.Lock()

    def send(message):
        with writing:
            print(message if isinstance(message, str) else json.dumps(message), flush=True)

    def one(message):
        told = answer(message, send)
        if told is not None:
            send(told)

    for line in sys.stdin:
        threading.Thread(target=one, args=(json.loads(line),), daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        message = json.loads(body)
        with lock, (HERE / "headers").open("a") as seen:
            seen.write(json.dumps({name.lower(): value for name, value in self.headers.items()}) + "\n")
        session = (HERE / "session").read_text()
        if not MODERN and message["method"] != "initialize" and self.headers.get("mcp-session-id") != session:
            return self.reply(404, b"no session")
        if "id" not in message:
            return self.reply(202, b"")
        events = []
        told = answer(message, events.append)
        how = message.get("params", {}).get("arguments", {}).get("how", "")
        if told is None:
            self.close_connection = True
            return None
        if how == "status":
            return self.reply(500, b"oh")
        if how == "gone":
            # It did it, and with that its session is over.
            return self.reply(404, b"no session")
        if how == "forbidden":
            return self.reply(403, b"no")
        if how == "progress" or how == "stream":
            stream = "".join(f"data: {json.dumps(event)}\n\n" for event in [*events, told])
            return self.reply(200, stream.encode(), "text/event-stream")
        return self.reply(200, json.dumps(told).encode())

    def reply(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", (HERE / "session").read_text())
        self.end_headers()
        self.wfile.write(body)


if "--http" in sys.argv:
    (HERE / "session").write_text("one")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    (HERE / "port.new").write_text(str(server.server_address[1]))
    (HERE / "port.new").rename(HERE / "port")
    server.serve_forever()
else:
    stdio()
