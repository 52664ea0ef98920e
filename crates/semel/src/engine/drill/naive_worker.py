"""The tool worker of the incident: it keeps the last raw request for resume, and an empty JSON body means "that one".

usage: naive_worker.py PORT_FILE ROOT LOG [PORT]
POST /tool takes {"tool": "delete_file" | "write_file", "path": ..., "text": ..., "id": ...}; GET /readyz is 200 while
ROOT is the directory that it was; POST /internal/replay-last is what readiness falls back to.
"""
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port_file, root, log = sys.argv[1:4]
port = int(sys.argv[4]) if sys.argv[4:] else 0
last = {"raw": b"{}", "root": os.stat(root).st_ino}


def act(request):
    place = os.path.join(root, request["path"])
    if request["tool"] == "write_file":
        with open(place, "w") as f:
            f.write(request["text"])
    elif request["tool"] == "delete_file" and os.path.exists(place):
        os.remove(place)
    return {"ok": True, "id": request.get("id", "t-0")}


class Worker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        warm = self.path == "/readyz" and os.stat(root).st_ino == last["root"]
        self.answer(200 if warm else 503, {"ready": warm})

    do_HEAD = do_GET

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/internal/replay-last":
            request = json.loads(raw or b"{}") or json.loads(last["raw"])
        else:
            request = json.loads(raw)
            last.update(raw=raw)
            with open(log, "a") as f:
                f.write(f"{request['tool']} {request['path']} id={request.get('id')}\n")
        self.answer(200, act(request))

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", port), Worker)
with open(port_file + ".new", "w") as f:
    f.write(str(server.server_address[1]))
os.rename(port_file + ".new", port_file)
server.serve_forever()
