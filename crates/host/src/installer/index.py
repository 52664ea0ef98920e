# Serves the wheels of one generation on loopback, as an index of Python packages, while Poetry runs.
# Arguments: the directory of the wheels, then the command.
import hashlib, html, http.server, os, pathlib, re, subprocess, sys, threading, urllib.parse

stock, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
wheels = {}
for path in sorted(stock.glob("*.whl")):
    name = re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    wheels.setdefault(name, []).append((path.name, digest))


class Index(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *said):
        pass

    def do_GET(self):
        parts = urllib.parse.unquote(self.path).strip("/").split("/")
        body, kind, status = b"", "text/html", 404
        if parts[0] == "simple" and parts[-1] in wheels:
            links = [f'<a href="/files/{urllib.parse.quote(file)}#sha256={digest}">{html.escape(file)}</a><br>' for file, digest in wheels[parts[-1]]]
            body, status = ("<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>").encode(), 200
        elif parts[0] == "files" and any(parts[-1] == file for files in wheels.values() for file, _ in files):
            body, kind, status = (stock / parts[-1]).read_bytes(), "application/octet-stream", 200
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
environment = dict(os.environ, SEMEL_INDEX=f"http://127.0.0.1:{server.server_address[1]}/simple/")
sys.exit(subprocess.run(command, env=environment).returncode)
