#!/usr/bin/env python3
"""Verifies a certificate with securesystemslib, without any part of Semel.

usage: verify_dsse.py CERTIFICATE.dsse.json PUBLIC_KEY.pem

Prints the verified payload to stdout. Exit 0: verified. 1: refused. 2: wrong usage.
"""

import json
import sys

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://semel.dev/attestation/certification/v1"


def refuse(why):
    print(f"refused: {why}", file=sys.stderr)
    return 1


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with open(arguments[0], "rb") as file:
        text = file.read()
    with open(arguments[1], "rb") as file:
        key = SSlibKey.from_crypto(load_pem_public_key(file.read()))
    try:
        envelope = Envelope.from_dict(json.loads(text))
        envelope.verify([key], 1)
    except VerificationError as error:
        return refuse(error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return refuse(f"not an envelope: {error!r}")
    except Exception as error:  # securesystemslib has more of its own; none of them is a pass
        return refuse(repr(error))
    if envelope.payload_type != PAYLOAD_TYPE:
        return refuse(f"payload type {envelope.payload_type}")
    statement = json.loads(envelope.payload)
    if (statement["_type"], statement["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
        return refuse(f"types {statement['_type']}, {statement['predicateType']}")
    sys.stdout.buffer.write(envelope.payload + b"\n")
    print(f"verified by key {key.keyid}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
