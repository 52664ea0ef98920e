//! MD5, for the `content-hash` of Composer alone.
//!
//! It says whether a lock was made from this manifest, as far as Composer itself says so. It proves nothing against
//! somebody who wants two manifests with one hash; names and versions are compared as well.
//!
//! # Source
//! RFC 1321.

const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// Gives the digest in lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut message = bytes.to_vec();
    message.push(0x80);
    while message.len() % 64 != 56 {
        message.push(0);
    }
    let bits = (bytes.len() as u64).wrapping_mul(8);
    message.extend_from_slice(&bits.to_le_bytes());
    let mut state: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for block in message.chunks_exact(64) {
        round(&mut state, block);
    }
    let digest = state.iter().flat_map(|word| word.to_le_bytes());
    digest.map(|byte| format!("{byte:02x}")).collect()
}

fn round(state: &mut [u32; 4], block: &[u8]) {
    let word = |at: usize| {
        let four: Vec<u32> = block.iter().skip(at * 4).take(4).map(|b| u32::from(*b)).collect();
        four.iter().rev().fold(0, |sum, byte| sum << 8 | byte)
    };
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..64_usize {
        let (mix, from) = match step / 16 {
            0 => ((b & c) | (!b & d), step),
            1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
            2 => (b ^ c ^ d, (3 * step + 5) % 16),
            _ => (c ^ (b | !d), (7 * step) % 16),
        };
        // The constants of RFC 1321 are the first 32 bits of the sines of whole numbers.
        let sine = ((step as f64 + 1.0).sin().abs() * 4_294_967_296.0) as u32;
        let sum = a.wrapping_add(mix).wrapping_add(sine).wrapping_add(word(from));
        (a, d, c) = (d, c, b);
        b = b.wrapping_add(sum.rotate_left(SHIFTS[step / 16][step % 4]));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

#[cfg(test)]
mod tests {
    use super::hex;

    /// The test suite of RFC 1321.
    #[test]
    fn digests_are_those_of_the_rfc() {
        for (text, digest) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            ("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(hex(text.as_bytes()), digest, "{text}");
        }
    }
}
