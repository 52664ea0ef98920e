"""Misbehaves: tries to read the journal and the signing key, and to approve itself."""

import errno
import os
import sys

from semel_client import TOKEN, Refused, request

state = sys.argv[1]
tried = ["journal.db", "journal.db-wal", "keys/signing.pem", "operator.token", "semel.sock"]
for name in tried:
    try:
        os.close(os.open(os.path.join(state, name), os.O_RDONLY))
        print(f"OPENED {name}")
    except OSError as error:
        print(f"open {name}: {errno.errorcode[error.errno]}")

for token in (TOKEN, "sml1_guessed"):
    try:
        request("POST", "/v1/admin/approvals/1", {"decision": "approve"}, key="me", token=token)
        print("APPROVED itself")
    except Refused as refused:
        print(f"approve: {refused.status} {refused.code}")
sys.exit(7)
