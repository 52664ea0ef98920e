// Serves the artifacts of one generation on loopback, as a registry, while a command runs.
// Arguments: a JSON file {name: {version: {"algorithm", "hex", "file"}}}, then the command; `{registry}` in it is replaced.
const fs = require("fs");
const http = require("http");
const { spawn } = require("child_process");

const [catalog, program, ...args] = process.argv.slice(1);
const packages = JSON.parse(fs.readFileSync(catalog, "utf8"));
const tarballs = new Map();
for (const [name, versions] of Object.entries(packages)) {
  for (const [version, { file }] of Object.entries(versions)) {
    tarballs.set(`${name}/-/${name.split("/").pop()}-${version}.tgz`, file);
  }
}

function about(name, base) {
  const versions = {};
  for (const [version, { algorithm, hex }] of Object.entries(packages[name])) {
    const tarball = `${base}${name}/-/${name.split("/").pop()}-${version}.tgz`;
    const integrity = `${algorithm}-${Buffer.from(hex, "hex").toString("base64")}`;
    versions[version] = { name, version, dist: { tarball, integrity } };
  }
  return JSON.stringify({ name, versions, "dist-tags": { latest: Object.keys(versions).pop() } });
}

const server = http.createServer((request, response) => {
  const base = `http://127.0.0.1:${server.address().port}/`;
  const path = decodeURIComponent(request.url.slice(1).split("?")[0]);
  if (tarballs.has(path)) {
    fs.createReadStream(tarballs.get(path)).pipe(response.setHeader("Content-Type", "application/octet-stream"));
  } else if (Object.hasOwn(packages, path)) {
    response.setHeader("Content-Type", "application/json").end(about(path, base));
  } else {
    response.writeHead(404).end("{}");
  }
});

server.listen(0, "127.0.0.1", () => {
  const registry = `http://127.0.0.1:${server.address().port}/`;
  const child = spawn(program, args.map((arg) => arg.replaceAll("{registry}", registry)), { stdio: "inherit" });
  child.on("error", (error) => {
    console.error(String(error));
    process.exit(127);
  });
  child.on("exit", (code, signal) => process.exit(signal ? 1 : code));
});
