#!/usr/bin/env python3
"""Lists and calls every tool with the official Python client, with and without keys, and prints what it saw as JSON.

usage: client.py MODE PREFIX   with SEMEL_MCP_URL and SEMEL_TOKEN in the environment
MODE is legacy, auto or 2026-07-28; a client of the first line has legacy alone. PREFIX begins every key.
"""
import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

MODE, PREFIX = sys.argv[1], sys.argv[2]
URL = os.environ["SEMEL_MCP_URL"]
HEADERS = {"Authorization": "Bearer " + os.environ["SEMEL_TOKEN"]}
CALLS = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls.json")))
META = "dev.semel/idempotencyKey"


@asynccontextmanager
async def first_line():
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async with streamablehttp_client(URL, headers=HEADERS) as (reader, writer, _):
        async with ClientSession(reader, writer) as session:
            hello = await session.initialize()
            yield session, hello.protocolVersion


@asynccontextmanager
async def second_line():
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with httpx2.AsyncClient(headers=HEADERS, timeout=60) as http:
        async with Client(streamable_http_client(URL, http_client=http), mode=MODE) as client:
            yield client, str(client.protocol_version)


def told(result):
    """What a result says, whichever line of the client it is of."""
    failed = getattr(result, "is_error", getattr(result, "isError", None))
    structured = getattr(result, "structured_content", getattr(result, "structuredContent", None))
    return failed, structured


async def refusal(call):
    try:
        return {"result": told(await call)}
    except Exception as error:
        inner = getattr(error, "error", error)
        return {"code": getattr(inner, "code", None), "data": getattr(inner, "data", None), "text": str(error)}


async def main():
    import importlib.metadata

    version = importlib.metadata.version("mcp")
    line = first_line if version.startswith("1.") else second_line
    async with line() as (client, spoken):
        listed = await client.list_tools()
        seen = {"client": "python " + version, "spoken": spoken, "tools": sorted(tool.name for tool in listed.tools)}
        mutations = {tool.name for tool in listed.tools if not (
            tool.annotations.readOnlyHint if hasattr(tool.annotations, "readOnlyHint") else tool.annotations.read_only_hint)}
        called = {}
        for name, arguments in CALLS:
            arguments = json.loads(json.dumps(arguments).replace("PREFIX", PREFIX))
            meta = {META: f"{PREFIX}-{name}"} if name in mutations else None
            failed, structured = told(await client.call_tool(name, arguments, meta=meta))
            once = [failed, structured.get("replayed")]
            if name in mutations:
                failed, structured = told(await client.call_tool(name, arguments, meta=meta))
                once += [failed, structured.get("replayed")]
                # The same key as an argument is the same call.
                with_key = dict(arguments, idempotency_key=f"{PREFIX}-{name}")
                failed, structured = told(await client.call_tool(name, with_key))
                once += [failed, structured.get("replayed")]
                failed, structured = told(await client.call_tool(name, arguments))
                once += [failed, structured["error"]["type"]]
            called[name] = once
        seen["called"] = called
        other = {"path": "a", "content": "other"}
        meta = {META: f"{PREFIX}-write_file"}
        seen["conflict"] = await refusal(client.call_tool("write_file", other, meta=meta))
        seen["model_conflict"] = await refusal(
            client.call_tool("write_file", dict(other, idempotency_key=f"{PREFIX}-write_file"))
        )
        seen["unknown"] = await refusal(client.call_tool("nope", {"a": 1}))
        print(json.dumps(seen))


asyncio.run(main())
