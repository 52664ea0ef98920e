"""A server that reads byte by byte. Its first life reads one call, waits until another lies unread in its pipe, and dies.

Usage: unread.py DIRECTORY
"""

import array
import fcntl
import json
import os
import pathlib
import sys
import termios

HERE = pathlib.Path(sys.argv[1])
FIRST = not (HERE / "starts").exists()
with (HERE / "starts").open("a") as starts:
    starts.write("one\n")


def line():
    read = b""
    while not read.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        read += byte
    return json.loads(read)


while True:
    message = line()
    method, ident = message["method"], message.get("id")
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "u", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "note", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        if FIRST:
            (HERE / "first.here").touch()
            left = array.array("i", [0])
            while left[0] == 0:
                fcntl.ioctl(0, termios.FIONREAD, left)
            os._exit(1)
        with (HERE / "effects").open("a") as effects:
            effects.write(message["params"]["arguments"]["text"] + "\n")
        result = {"content": []}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": ident, "result": result}), flush=True)
