#!/bin/sh
# The script part of the composite action: from variables to one call of `semel gate`.
#
# It decides nothing; its exit status is the gate's. An input that is empty is none.
set -eu

set -- gate --github --certificate "$GATE_CERTIFICATE" --commit "$GATE_COMMIT" --repository "${GATE_REPOSITORY:-.}"
if [ -n "${GATE_POLICY:-}" ]; then
    set -- "$@" --policy "$GATE_POLICY"
else
    set -- "$@" --policy-path "${GATE_POLICY_PATH:-.semel/gate.toml}"
fi
# Also beside a policy: what the certificate must have been compared with.
if [ -n "${GATE_BASE:-}" ]; then
    set -- "$@" --base "$GATE_BASE"
fi
if [ -n "${GATE_RECORD:-}" ]; then
    set -- "$@" --record "$GATE_RECORD"
fi
if [ -n "${GATE_TARGET:-}" ]; then
    set -- "$@" --consume --target "$GATE_TARGET"
fi
if [ -n "${GATE_STATE:-}" ]; then
    set -- "$@" --state "$GATE_STATE"
fi
exec "${GATE_SEMEL:-semel}" "$@"
