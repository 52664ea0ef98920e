// Verifies a certificate's Sigstore bundle with @sigstore/verify, without any part of Semel.
//
// usage: node verify_sigstore.cjs BUNDLE.sigstore.json PUBLIC_KEY.pem
//
// Prints the verified payload to stdout. Exit 0: verified. 1: refused. 2: wrong usage.
'use strict';

const crypto = require('crypto');
const fs = require('fs');
const { bundleFromJSON } = require('@sigstore/bundle');
const { Verifier, toSignedEntity, toTrustMaterial } = require('@sigstore/verify');

const PAYLOAD_TYPE = 'application/vnd.in-toto+json';
const PREDICATE_TYPE = 'https://semel.dev/attestation/certification/v1';

function main(args) {
  if (args.length !== 2) {
    console.error('usage: node verify_sigstore.cjs BUNDLE.sigstore.json PUBLIC_KEY.pem');
    return 2;
  }
  const publicKey = crypto.createPublicKey(fs.readFileSync(args[1]));
  try {
    const bundle = bundleFromJSON(JSON.parse(fs.readFileSync(args[0], 'utf8')));
    // The key is the one that was given, whatever hint the bundle has; there is no authority and no log.
    const none = { certificateAuthorities: [], timestampAuthorities: [], tlogs: [], ctlogs: [] };
    const trust = toTrustMaterial(none, () => ({ publicKey, validFor: () => true }));
    const thresholds = { ctlogThreshold: 0, tlogThreshold: 0, timestampThreshold: 0 };
    new Verifier(trust, thresholds).verify(toSignedEntity(bundle));
    const envelope = bundle.content.dsseEnvelope;
    if (envelope.payloadType !== PAYLOAD_TYPE) {
      throw new Error(`payload type ${envelope.payloadType}`);
    }
    const statement = JSON.parse(envelope.payload.toString('utf8'));
    if (statement.predicateType !== PREDICATE_TYPE) {
      throw new Error(`predicate type ${statement.predicateType}`);
    }
    process.stdout.write(envelope.payload);
    process.stdout.write('\n');
    return 0;
  } catch (error) {
    console.error(`refused: ${error.code || error.name}: ${error.message}`);
    return 1;
  }
}

process.exitCode = main(process.argv.slice(2));
