// Lists and calls every tool with the official TypeScript client, with and without keys, and prints what it saw as JSON.
//
// usage: node client.mjs LINE MODE PREFIX [COMMAND ...]   with SEMEL_TOKEN, SEMEL_MCP_MODULES and, without a COMMAND,
// SEMEL_MCP_URL in the environment. LINE is 1 or 2; MODE is legacy, auto or modern (the first line has legacy alone).
// PREFIX begins every key. COMMAND is a server at standard input and output: then every tool is called without any key first.
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';

const [line, mode, prefix, ...command] = process.argv.slice(2);
const { SEMEL_MCP_URL: url, SEMEL_TOKEN: token, SEMEL_MCP_MODULES: modules } = process.env;
const META = 'dev.semel/idempotencyKey';
const calls = JSON.parse(fs.readFileSync(path.join(path.dirname(fileURLToPath(import.meta.url)), 'calls.json'), 'utf8'));
const require = createRequire(path.join(modules, 'package.json'));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

let Client, Transport, Stdio, options = {};
if (line === '1') {
  ({ Client } = await load('@modelcontextprotocol/sdk/client/index.js'));
  ({ StreamableHTTPClientTransport: Transport } = await load('@modelcontextprotocol/sdk/client/streamableHttp.js'));
  ({ StdioClientTransport: Stdio } = await load('@modelcontextprotocol/sdk/client/stdio.js'));
} else {
  ({ Client, StreamableHTTPClientTransport: Transport } = await load('@modelcontextprotocol/client'));
  ({ StdioClientTransport: Stdio } = await load('@modelcontextprotocol/client/stdio'));
  const negotiation = { legacy: 'legacy', auto: 'auto', modern: { pin: '2026-07-28' } }[mode];
  options = { versionNegotiation: { mode: negotiation } };
}
const client = new Client({ name: 'semel-test', version: '0' }, { capabilities: {}, ...options });
let spoken;
const overHttp = () => new Transport(new URL(url), {
  requestInit: { headers: { Authorization: `Bearer ${token}` } },
  fetch: (where, init) => {
    spoken = new Headers(init?.headers).get('mcp-protocol-version') ?? spoken;
    return fetch(where, init);
  },
});
const transport = command.length ? new Stdio({ command: command[0], args: command.slice(1), env: process.env }) : overHttp();
if (command.length) {
  // The revision stands in each message, or in the answer to the handshake.
  const [send, agreed] = [transport.send.bind(transport), transport.setProtocolVersion?.bind(transport)];
  transport.setProtocolVersion = (version) => {
    spoken ??= version;
    agreed?.(version);
  };
  transport.send = (message, options) => {
    spoken = message.params?._meta?.['io.modelcontextprotocol/protocolVersion'] ?? spoken;
    return send(message, options);
  };
}
await client.connect(transport);

const refusal = async (call) => {
  try {
    const result = await call;
    return { result: [result.isError ?? false, result.structuredContent ?? null] };
  } catch (error) {
    return { code: error.code ?? null, data: error.data ?? null, text: String(error) };
  }
};

const { tools } = await client.listTools();
const seen = { client: `typescript ${line}`, tools: tools.map((tool) => tool.name).sort(), called: {} };
const mutations = new Set(tools.filter((tool) => !tool.annotations.readOnlyHint).map((tool) => tool.name));
seen.keys = JSON.stringify(tools.map((tool) => tool.inputSchema)).includes('idempotency_key');
if (command.length) {
  seen.bare = {};
  for (const [name, plain] of calls) {
    const result = await client.callTool({ name, arguments: plain });
    const came = result.structuredContent?.error?.type ?? result.structuredContent?.replayed ?? null;
    seen.bare[name] = [result.isError ?? false, came];
  }
}
for (const [name, plain] of calls) {
  const args = JSON.parse(JSON.stringify(plain).replaceAll('PREFIX', prefix));
  const key = `${prefix}-${name}`;
  const _meta = mutations.has(name) ? { [META]: key } : undefined;
  const call = async (params) => {
    const result = await client.callTool({ name, ...params });
    return [result.isError ?? false, result.structuredContent?.replayed ?? result.structuredContent?.error?.type ?? null];
  };
  let once = await call({ arguments: args, _meta });
  if (mutations.has(name)) {
    once = once.concat(await call({ arguments: args, _meta }));
    // The same key as an argument is the same call.
    once = once.concat(await call({ arguments: { ...args, idempotency_key: key } }));
    once = once.concat(await call({ arguments: args }));
  }
  seen.called[name] = once;
}
const other = { path: 'a', content: 'other' };
seen.conflict = await refusal(client.callTool({ name: 'write_file', arguments: other, _meta: { [META]: `${prefix}-write_file` } }));
seen.model_conflict = await refusal(
  client.callTool({ name: 'write_file', arguments: { ...other, idempotency_key: `${prefix}-write_file` } }),
);
seen.unknown = await refusal(client.callTool({ name: 'nope', arguments: { a: 1 } }));
seen.spoken = spoken;
console.log(JSON.stringify(seen));
await client.close();
process.exit(0);
