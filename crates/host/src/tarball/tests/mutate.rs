//! Archives made at random: lawful ones of every shape, and what becomes of them and of the hostile ones when they are
//! cut, spliced and overwritten.

use super::{END, Raw, cat, hostile, pad, pax, raw};

/// A small generator of numbers: the same seed gives the same archives.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())].clone()
    }
}

/// Names that some reader might take for something else.
const NAMES: &[&str] = &[
    "a",
    "b",
    "c.d",
    "-rf",
    "--",
    "x y",
    " lead",
    "trail ",
    "q\"q",
    "it's",
    "back\\slash",
    "%s",
    "*",
    "[a]",
    "@at",
    "=eq",
    "C:",
    "caf\u{e9}",
    "\u{1f980}",
    "...",
    ".hidden",
    "1 path=x",
    "#x#",
    "$HOME",
    "!",
    "{b}",
    "\u{212b}x",
    "..x",
];

fn name(dice: &mut Dice) -> String {
    match dice.roll(12) {
        0 => "n".repeat(90 + dice.roll(20)),
        1 => "w".repeat(255),
        _ => dice.pick(NAMES).to_owned(),
    }
}

fn path(dice: &mut Dice) -> String {
    let depth = match dice.roll(20) {
        0 => 63,
        1 => 12,
        n => n % 4,
    };
    let mut path = String::new();
    for _ in 0..depth {
        path.push_str(if depth > 20 {
            "d"
        } else {
            dice.pick(&["a", "b", "dir", "x y", "-d"])
        });
        path.push('/');
    }
    path + &name(dice)
}

/// Puts an entry into words: in the name alone, in prefix and name, or in an extended header.
fn entry(dice: &mut Dice, path: &str, mut header: Raw, link: Option<&str>) -> Vec<u8> {
    let mut words: Vec<(&str, &[u8])> = Vec::new();
    let split = path.char_indices().filter(|(_, c)| *c == '/').map(|(at, _)| at);
    let split: Vec<usize> = split
        .filter(|at| *at <= 155 && path.len() - at - 1 <= 100)
        .collect();
    let mut prefix = String::new();
    if path.len() <= 100 && dice.roll(4) > 0 {
        header.name = path.into();
    } else if let (false, true) = (split.is_empty(), dice.roll(3) > 0) {
        let at = dice.pick(&split);
        prefix.push_str(&path[..at]);
        header.name = path[at + 1..].into();
    } else {
        words.push(("path", path.as_bytes()));
        header.name = dice.pick(&["PaxEntry", "other/name", "cut/", "a"]).into();
    }
    if let Some(link) = link {
        if link.len() <= 100 && dice.roll(4) > 0 {
            header.link = link.into();
        } else {
            words.push(("linkpath", link.as_bytes()));
            header.link = dice.pick(&["", "elsewhere"]).into();
            if header.link.is_empty() {
                header.link = b"x".to_vec();
            }
        }
    }
    if dice.roll(2) == 0 {
        words.reverse();
    }
    let extended = if words.is_empty() {
        Vec::new()
    } else {
        pax(&words, b'x')
    };
    let mut block = header.block();
    block[345..345 + prefix.len()].copy_from_slice(prefix.as_bytes());
    for (at, text) in [
        (108, ["0000000\0", "0001750\0", "7777777\0"]),
        (116, ["0000000\0", "0001750 ", "7777777\0"]),
    ] {
        block[at..at + 8].copy_from_slice(dice.pick(&text).as_bytes());
    }
    block[136..148].copy_from_slice(
        dice.pick(&["00000000000\0", "14371573245 ", "77777777777\0"])
            .as_bytes(),
    );
    let owner = dice.pick(&["", "root", "nobody", "No Such User"]);
    block[265..265 + owner.len()].copy_from_slice(owner.as_bytes());
    if dice.roll(2) == 0 {
        block[329..345].fill(0);
    }
    cat(&[extended, crate::tarball::tests::laws::mended(&block)])
}

/// Makes an archive that is mostly lawful: names may collide all the same, and links may leave.
pub(super) fn lawful(dice: &mut Dice) -> Vec<u8> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut paths: Vec<String> = Vec::new();
    for _ in 0..=dice.roll(6) {
        let path = path(dice);
        if dice.roll(5) == 0 {
            let target = match dice.roll(4) {
                0 => format!("./{}", name(dice)),
                1 if path.contains('/') => format!("../{}", name(dice)),
                2 => "t/".repeat(60) + "end",
                _ => name(dice),
            };
            let mut link = raw("", 0, b'2');
            link.mode = dice.pick(&[0o777, 0o644, 0]);
            parts.push(entry(dice, &path, link, Some(&target)));
        } else {
            let size = dice.pick(&[0, 1, 511, 512, 513, 1500]);
            let content: Vec<u8> = (0..size)
                .map(|n| u8::try_from((n * 7 + size) % 256).unwrap())
                .collect();
            let mut file = raw("", size, b'0');
            file.mode = dice.pick(&[0o644, 0o755, 0o600, 0o400, 0o700, 0o777, 0o664, 0o555]);
            parts.push(cat(&[entry(dice, &path, file, None), pad(content)]));
        }
        paths.push(path);
    }
    for path in &paths {
        if let (Some((parent, _)), 0) = (path.rsplit_once('/'), dice.roll(3)) {
            let mut dir = raw("", 0, b'5');
            dir.mode = dice.pick(&[0o755, 0o700, 0o777]);
            let slash = dice.pick(&["/", ""]);
            let dir = entry(dice, &format!("{parent}{slash}"), dir, None);
            let at = dice.roll(parts.len() + 1);
            parts.insert(at, dir);
        }
    }
    parts.push(END.to_vec());
    parts.push(vec![0; 512 * dice.pick(&[0, 0, 1, 18])]);
    parts.concat()
}

/// Takes an archive, honest or hostile, and damages it in some places.
pub(super) fn damaged(dice: &mut Dice) -> Vec<u8> {
    let all = hostile();
    let mut bytes = match dice.roll(3) {
        0 => dice.pick(&all).1,
        _ => lawful(dice),
    };
    for _ in 0..=dice.roll(3) {
        let blocks = bytes.len() / 512;
        if blocks == 0 {
            break;
        }
        let (one, other) = (dice.roll(blocks) * 512, dice.roll(blocks) * 512);
        match dice.roll(7) {
            0 => bytes.copy_within(one..one + 512, other),
            1 => drop(bytes.drain(one..one + 512)),
            2 => {
                let block = bytes[one..one + 512].to_vec();
                bytes.splice(other..other, block);
            }
            3 => {
                let strange = dice.pick(&all).1;
                bytes.splice(one..one, strange);
            }
            4 => {
                let field = dice.pick(&[
                    (0, 100),
                    (100, 8),
                    (124, 12),
                    (156, 1),
                    (157, 100),
                    (257, 8),
                    (345, 155),
                ]);
                let from = bytes[other + field.0..other + field.0 + field.1].to_vec();
                bytes[one + field.0..one + field.0 + field.1].copy_from_slice(&from);
            }
            5 => bytes[one + 156] = dice.pick(b"01234567xgLKSVDN\0"),
            _ => {
                let at = one + dice.roll(512);
                bytes[at] = dice.pick(b"\0/. 017\xff\xc3a\n=");
            }
        }
    }
    bytes
}
