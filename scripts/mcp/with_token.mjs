// Passes requests on to a server, with a bearer token added: the conformance suite can send none.
//
// usage: node with_token.mjs URL   with SEMEL_TOKEN in the environment; prints its own URL, and ends with its input
import http from 'node:http';

const target = new URL(process.argv[2]);
const token = process.env.SEMEL_TOKEN;
const server = http.createServer((request, response) => {
  const headers = request.rawHeaders.concat(['Authorization', `Bearer ${token}`]);
  const onward = http.request(
    { host: target.hostname, port: target.port, path: request.url, method: request.method, headers, setHost: false, agent: false },
    (answer) => {
      response.writeHead(answer.statusCode, answer.rawHeaders);
      answer.pipe(response);
    },
  );
  onward.on('error', () => response.destroy());
  response.on('close', () => onward.destroy());
  request.pipe(onward);
});
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
