"""Asks the daemon as its operator: ask.py SOCKET TOKEN METHOD PATH [BODY]. Prints the body; fails unless it is 200."""

import http.client
import socket
import sys

place, token, method, path, *body = sys.argv[1:]
connection = http.client.HTTPConnection("semel", timeout=60)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(place)
connection.request(method, path, body[0] if body else None, {"Authorization": f"Bearer {token}"})
answer = connection.getresponse()
print(answer.read().decode())
sys.exit(answer.status != 200)
