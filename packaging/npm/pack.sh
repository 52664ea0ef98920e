#!/usr/bin/env bash
# Packs the npm package around a built binary.
#
# Usage: packaging/npm/pack.sh [--stage] BINARY OUT
#   BINARY   the semel to pack, such as target/release/semel
#   OUT      a directory; the archive is written there, or with --stage the package's files
#   --stage  only lay the files out; npm is not needed
#
# Prints the path of what it made. Exit 0: made. Exit 1: not. Exit 64: usage.
set -euo pipefail

stage_only=no
if [ "${1:-}" = --stage ]; then
    stage_only=yes
    shift
fi
if [ $# -ne 2 ] || [ ! -f "$1" ] || [ ! -x "$1" ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 64
fi
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "$1")
mkdir -p "$2"
out=$(cd "$2" && pwd)
case $(uname -m) in
    x86_64) cpu=x64 ;;
    aarch64) cpu=arm64 ;;
    *) printf 'no package is made for %s\n' "$(uname -m)" >&2; exit 1 ;;
esac

stage=$out
if [ "$stage_only" = no ]; then
    stage=$(mktemp -d)
    trap 'rm -rf "$stage"' EXIT
fi
mkdir -p "$stage/bin"
cp -R "$here/lib" "$here/example" "$here/README.md" "$stage/"
cp "$here/../../LICENSE-MIT" "$here/../../LICENSE-APACHE" "$stage/"
cp "$binary" "$stage/bin/semel"
chmod 755 "$stage/bin/semel"
sha256=$(sha256sum "$stage/bin/semel")
sha256=${sha256%% *}
printf '// Written by pack.sh: which binary this package was packed with.\nexport const sha256 = '\''%s'\'';\n' \
    "$sha256" >"$stage/lib/binary.js"
# Of the binary's own version, and for its own machine.
version=$("$stage/bin/semel" --version)
version=${version##* }
sed -e "s/\"version\": \"[^\"]*\"/\"version\": \"$version\"/" \
    -e "s/\"os\": \[\"linux\"\],/\"os\": [\"linux\"],\n  \"cpu\": [\"$cpu\"],/" \
    "$here/package.json" >"$stage/package.json"

if [ "$stage_only" = yes ]; then
    printf '%s\n' "$stage"
else
    cd "$out"
    name=$(npm pack --silent --offline "$stage")
    printf '%s/%s\n' "$out" "$name"
fi
