#!/usr/bin/env python3
"""Lists and calls every tool with the official Python client, with and without keys, and prints what it saw as JSON.

usage: client.py MODE PREFIX [COMMAND ...]   with SEMEL_TOKEN and, without a COMMAND, SEMEL_MCP_URL in the environment
MODE is legacy, auto or 2026-07-28; a client of the first line has legacy alone. PREFIX begins every key. COMMAND is a server
at standard input and output: then every tool is called without any key first.
"""
import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

MODE, PREFIX, COMMAND = sys.argv[1], sys.argv[2], sys.argv[3:]
URL = os.environ.get("SEMEL_MCP_URL")
HEADERS = {"Authorization": "Bearer " + os.environ["SEMEL_TOKEN"]}
CALLS = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls.json")))
META = "dev.semel/idempotencyKey"


def at_stdio():
    from mcp.client.stdio import StdioServerParameters, stdio_client

    return stdio_client(StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=dict(os.environ)))


@asynccontextmanager
async def first_line():
    if COMMAND:
        from mcp import ClientSession

        async with at_stdio() as (reader, writer):
            async with ClientSession(reader, writer) as session:
                hello = await session.initialize()
                yield session, hello.protocolVersion
        return
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async with streamablehttp_client(URL, headers=HEADERS) as (reader, writer, _):
        async with ClientSession(reader, writer) as session:
            hello = await session.initialize()
            yield session, hello.protocolVersion


@asynccontextmanager
async def second_line():
    if COMMAND:
        from mcp import Client

        async with Client(at_stdio(), mode=MODE) as client:
            yield client, str(client.protocol_version)
        return
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


def came(structured):
    """Why it was refused, else whether it was replayed."""
    return structured["error"]["type"] if "error" in structured else structured.get("replayed")


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
        schemas = [tool.model_dump(mode="json", by_alias=True)["inputSchema"] for tool in listed.tools]
        seen["keys"] = "idempotency_key" in json.dumps(schemas)
        if COMMAND:
            seen["bare"] = {}
            for name, arguments in CALLS:
                failed, structured = told(await client.call_tool(name, arguments))
                seen["bare"][name] = [failed, came(structured)]
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
                once += [failed, came(structured)]
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
