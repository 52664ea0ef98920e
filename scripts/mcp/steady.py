#!/usr/bin/env python3
"""Calls one tool after the other with the official Python client until a file is there, and prints what it saw as JSON.

usage: steady.py FILE COMMAND ...   COMMAND is a server at standard input and output
"""
import asyncio
import json
import os
import sys

from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

STOP, COMMAND = sys.argv[1], sys.argv[2:]


async def main():
    server = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=dict(os.environ))
    calls, replayed, errors = 0, 0, []
    async with stdio_client(server) as (reader, writer):
        async with ClientSession(reader, writer) as session:
            await session.initialize()
            while not os.path.exists(STOP) and len(errors) < 10:
                calls += 1
                edit = {"path": "log", "old_string": "END", "new_string": f"l{calls}\nEND"}
                try:
                    result = await session.call_tool("edit_file", edit)
                    if result.isError:
                        errors.append([calls, result.structuredContent])
                    else:
                        replayed += result.structuredContent["replayed"]
                except Exception as error:
                    errors.append([calls, repr(error)])
    print(json.dumps({"calls": calls, "replayed": replayed, "errors": errors}))


asyncio.run(main())
