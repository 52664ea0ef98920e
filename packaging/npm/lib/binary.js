// Written anew by pack.sh: which binary this package was packed with.
export const sha256 = '';
