#!/bin/sh
# Verifies a certificate with OpenSSL 3, without any part of Semel and without any package of Python.
#
# usage: verify_openssl.sh CERTIFICATE.dsse.json PUBLIC_KEY.pem
#
# Every signature entry must verify. Prints the payload. Exit 0: verified. 1: refused. 2: wrong usage.
set -eu
if [ $# -ne 2 ]; then
    echo "usage: $0 CERTIFICATE.dsse.json PUBLIC_KEY.pem" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Takes the envelope apart and writes the bytes that were signed (DSSE v1, pre-authentication encoding).
if ! python3 - "$1" "$work" <<'PY'
import base64, json, sys
try:
    envelope = json.load(open(sys.argv[1], "rb"))
    kind = envelope["payloadType"].encode()
    payload = base64.b64decode(envelope["payload"], validate=True)
    signatures = [base64.b64decode(entry["sig"], validate=True) for entry in envelope["signatures"]]
except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    sys.exit(repr(error))
if kind != b"application/vnd.in-toto+json" or not signatures:
    sys.exit("another payload type, or no signature")
open(sys.argv[2] + "/payload", "wb").write(payload)
open(sys.argv[2] + "/signed", "wb").write(b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload))
for at, signature in enumerate(signatures):
    open(f"{sys.argv[2]}/{at}.sig", "wb").write(signature)
PY
then
    echo "refused: not an envelope" >&2
    exit 1
fi
for signature in "$work"/*.sig; do
    if ! openssl pkeyutl -verify -pubin -inkey "$2" -rawin -in "$work/signed" -sigfile "$signature" >&2; then
        echo "refused: a signature does not verify" >&2
        exit 1
    fi
done
cat "$work/payload"
echo
