#!/usr/bin/env bash
# Runs the checker of MCP servers of files against this Semel, server-filesystem (npm, in .tools/mcp) and
# rust-mcp-filesystem (crates.io), one after the other, and prints their tables. The last one is built into .tools/peers
# where WITH_RUST_PEER=1 asks for it (some minutes of CPU); no test needs it.
#
# Usage: [WITH_RUST_PEER=1] scripts/mcp/peers.sh [ROUNDS]
set -uo pipefail
cd "$(dirname "$0")/../.."

rounds=${1:-8}
semel=${SEMEL:-target/debug/semel}
modules="$PWD/.tools/mcp/node_modules"
rust="$PWD/.tools/peers/bin/rust-mcp-filesystem"
export PATH="$modules/.bin:$PWD/.tools/peers/bin:$PATH"

if [ "${WITH_RUST_PEER:-0}" = 1 ] && [ ! -x "$rust" ]; then
    cargo install rust-mcp-filesystem --version 0.4.5 --locked --root .tools/peers --target-dir .tools/peers/target \
        && rm -rf .tools/peers/target
fi

check() {
    "$semel" conformance --mcp "$1" --rounds "$rounds"
    printf '(exit %s)\n\n' "$?"
}

check semel
if [ -x "$modules/node/bin/node" ]; then
    check 'mcp-server-filesystem {dir}'
else
    echo "SKIPPED: server-filesystem is not in .tools/mcp; scripts/setup.sh makes it" >&2
fi
if [ -x "$rust" ]; then
    check 'rust-mcp-filesystem --allow-write {dir}'
else
    echo "SKIPPED: rust-mcp-filesystem is not in .tools/peers; WITH_RUST_PEER=1 builds it" >&2
fi
