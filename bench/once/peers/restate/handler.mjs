// The handler of a Restate service: a call is one journaled step that unlinks a file. PORT says where it listens.
import fs from "node:fs";
import http2 from "node:http2";
// The SDK wants a newer Node than some distributions have; this is all that it misses.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new Promise((yes, no) => ((resolve = yes), (reject = no)));
  return { promise, resolve, reject };
};
const restate = await import("@restatedev/restate-sdk");
const fsService = restate.service({
  name: "fs",
  handlers: {
    delete: (ctx, call) =>
      ctx.run("unlink", () => {
        fs.unlinkSync(call.path);
        return { ok: true };
      }),
  },
});
const handler = restate.createEndpointHandler({ services: [fsService] });
http2.createServer(handler).listen(Number(process.env.PORT), "127.0.0.1");
