#!/usr/bin/env bash
# Holds the daemon against its OpenAPI document: the document is valid, and whatever Schemathesis sends, right or wrong,
# is answered as the document says. Every check of Schemathesis is on; what is not asked for, and why, is said in
# scripts/schemathesis/schemathesis.toml.
#
# It needs Python 3.11 or newer and, the first time, a package registry: a venv with pinned versions is made in target/.
# The daemons have state roots of their own, which are gone afterwards, and are reached by their Unix sockets.
#
# Usage: scripts/schemathesis.sh [--short] [--examples N] [--seed N] [--semel FILE]
#   --short     a share of it, for the test suite: few requests, and those at random alone
#   --examples  how many requests each operation gets at random, beside those that are thought out (default 100)
#   --seed      what the requests follow from (default 1)
#   --semel     the binary to hold against the document (default: the one that cargo builds here)
#
# Exit 0: nothing failed. Exit 1: something did. Exit 64: usage. Exit 75: there is no Python, or no registry.
set -uo pipefail
cd "$(dirname "$0")/.."

examples=100 seed=1 semel= phases=examples,coverage,fuzzing,stateful least=100
while [ $# -gt 0 ]; do
    case $1 in
        --short) examples=15 phases=examples,fuzzing,stateful least=10; shift ;;
        --examples) examples=${2-}; shift 2 ;;
        --seed) seed=${2-}; shift 2 ;;
        --semel) semel=${2-}; shift 2 ;;
        -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) examples=; break ;;
    esac
done
case $examples:$seed in
    :* | *: | *[!0-9:]*) printf 'usage: scripts/schemathesis.sh [--short] [--examples N] [--seed N] [--semel FILE]\n' >&2; exit 64 ;;
esac

say() { printf 'schemathesis: %s\n' "$*"; }
failed=no
fail() { say "FAILED: $*"; failed=yes; }

venv=$PWD/target/schemathesis-venv
make_venv() {
    local want
    want="$(sha256sum scripts/schemathesis/requirements.txt | cut -d' ' -f1) $(python3 -c 'import sys; print(sys.base_prefix, sys.version.split()[0])')" \
        || return 1
    [ "$(cat "$venv/stamp" 2>/dev/null)" = "$want" ] && return 0
    say "making $venv"
    rm -rf "$venv"
    python3 -m venv "$venv" \
        && "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
            -r scripts/schemathesis/requirements.txt \
        && printf '%s\n' "$want" >"$venv/stamp"
}
make_venv || { say 'no venv can be made: there is no Python 3.11, or no package registry'; exit 75; }
if [ -z "$semel" ]; then
    cargo build --quiet -p semel --locked || exit 1
    semel=${CARGO_TARGET_DIR:-target}/debug/semel
fi

work=$(mktemp -d)
daemon=
stop() {
    [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null
    daemon=
}
trap 'stop; rm -rf "$work"' EXIT

# What volumes are opened from: a directory with a commit, and one that is not there.
mkdir "$work/repository"
printf 'one\n' >"$work/repository/a"
git -C "$work/repository" init --quiet \
    && git -C "$work/repository" add a \
    && git -C "$work/repository" -c user.name=nobody -c user.email=nobody@localhost commit --quiet -m one \
    || exit 1
export SEMEL_PLACES=$work/repository:$work/absent

ask() { # METHOD PATH [BODY]: as the operator
    "$venv/bin/python" scripts/schemathesis/ask.py "$SEMEL_SOCKET" "$SEMEL_OPERATOR_TOKEN" "$@"
}

start() { # NAME
    local state=$work/$1/state
    mkdir "$work/$1"
    env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$work/$1" \
        "$semel" serve --json --quiet --state "$state" >"$work/$1/out" 2>"$work/$1/err" </dev/null &
    daemon=$!
    for _ in $(seq 200); do
        [ -s "$work/$1/out" ] && break
        sleep 0.05
    done
    export SEMEL_SOCKET=$state/semel.sock
    SEMEL_OPERATOR_TOKEN=$(cat "$state/operator.token") || return 1
    export SEMEL_OPERATOR_TOKEN
    SEMEL_JOB_TOKEN=$(ask POST /v1/admin/volumes '{"job":"job"}' \
        | "$venv/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["token"])') || return 1
    export SEMEL_JOB_TOKEN
}

try() { # NAME OPTION…: everything that Schemathesis has, against the operations that the options choose
    local name=$1
    shift
    say "$name"
    (
        cd "$work/$name" \
            && PYTHONPATH=$OLDPWD/scripts/schemathesis "$venv/bin/schemathesis" \
                --config-file "$OLDPWD/scripts/schemathesis/schemathesis.toml" run "$OLDPWD/crates/semel/openapi.json" \
                --url http://semel --phases "$phases" \
                --max-examples "$examples" --seed "$seed" --no-color "$@"
    ) || fail "$name"
    kill -0 "$daemon" 2>/dev/null || fail "$name: the daemon is gone"
    [ ! -s "$work/$name/err" ] || { cat "$work/$name/err"; fail "$name: the daemon wrote to stderr"; }
}

counted() { # WHAT LEAST: so much of it has to have happened, else nothing was tried
    local told
    told=$(ask GET /v1/admin/status \
        | "$venv/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["counted"][sys.argv[1]])' "$1") || told=0
    say "$told calls counted as $1"
    [ "$told" -ge "$2" ] || fail "fewer than $2 calls counted as $1"
}

say 'the document'
"$venv/bin/openapi-spec-validator" --subschema-errors all crates/semel/openapi.json || fail 'the document is not valid'
"$semel" generate openapi | cmp - crates/semel/openapi.json || fail 'the document is not that of the binary'

start jobs || exit 1
ask GET /v1/openapi.json >"$work/served.json" || fail 'the document is not served'
"$venv/bin/python" -c 'import json, sys; a, b = (json.load(open(f)) for f in sys.argv[1:]); sys.exit(a != b)' \
    "$work/served.json" crates/semel/openapi.json || fail 'another document is served'
try jobs --exclude-tag admin
counted executed "$least"
counted reads "$least"
counted conflicts 1
stop

start admin || exit 1
# With calls that leave something to undo and to end.
try admin --include-tag admin --include-operation-id write_file --include-operation-id run_command \
    --exclude-operation-id admin_shutdown
counted executed $((least / 10))
# The operation that ends it comes last, once.
ask POST /v1/admin/shutdown | grep -q '"draining":true' || fail 'the daemon is not shut down'
wait "$daemon" || fail 'the daemon ended badly'
daemon=

[ "$failed" = no ] || exit 1
say 'nothing failed'
