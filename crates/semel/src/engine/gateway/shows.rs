//! What a call that reads is answered with.
//!
//! It does *not* look at tokens, keys or the journal.

use super::answer::put_path;
use super::arguments::{Encoding, Flag, Look, Page};
use crate::engine::host;
use crate::limits;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use semel_core::glob::Glob;
use semel_core::ids::UnixMs;
use semel_core::{Code, Refusal, RelPath};
use semel_host::files::range::{Bounds as Cost, Cut, Range, Steadiness};
use semel_host::files::walk::{Bounds, Ended, GitEntries, Walked};
use semel_host::files::{self, FoundEntry, Grepped, Hit, Shown, Tell, Wanted, WantedLines};
use semel_host::root::Root;
use serde_json::{Map, Value, json};

type Body = Map<String, Value>;

/// Is what a look asks on its way.
pub(super) struct Asks<'a> {
    /// Whether an entry may be shown.
    pub(super) open: &'a dyn Fn(&RelPath) -> bool,
    /// Whether a search is to end.
    pub(super) over: &'a dyn Fn() -> bool,
}

/// Is what was seen.
pub(super) struct Seen {
    /// What was looked at, with every link followed.
    pub(super) at: RelPath,
    /// The answer.
    pub(super) body: Body,
}

/// Looks, and says what was seen.
///
/// # Errors
/// Those of the look.
pub(super) fn look(root: &Root, path: &RelPath, look: &Look, asks: &Asks<'_>) -> Result<Seen, Refusal> {
    match look {
        Look::File {
            range,
            encoding,
            digest,
        } => file(root, path, *range, (*encoding, *digest)),
        Look::Directory { depth, page } => directory(root, path, (*depth, page), asks),
        Look::Info { digest } => info(root, path, *digest),
        Look::Search {
            pattern,
            exclude,
            page,
        } => search(root, path, (pattern, exclude, page), asks),
        Look::Grep {
            pattern,
            files,
            exclude,
            context,
            tell,
            most,
            git,
        } => {
            let wanted = WantedLines {
                pattern,
                files,
                exclude,
                tell: *tell,
                context: *context,
                most: *most,
                bytes: limits::ANSWER,
                shown: limits::LINE_SHOWN,
                line: limits::LINE_SEARCHED,
            };
            let bounds = bounds(usize::MAX, entering(*git), asks);
            let found = files::grep(root, path, &wanted, &bounds).map_err(host)?;
            let mut body = lines(&found, *tell);
            put_path(&mut body, found.walked.at.as_ref().unwrap_or(path));
            let at = found.walked.at.or(found.file).unwrap_or_else(|| path.clone());
            Ok(Seen { at, body })
        }
    }
}

fn digested(digest: Flag) -> u64 {
    match digest {
        Flag::Set => limits::DIGEST_ASKED,
        Flag::Unset => limits::DIGEST,
    }
}

fn entering(git: Flag) -> GitEntries {
    match git {
        Flag::Set => GitEntries::Enter,
        Flag::Unset => GitEntries::Skip,
    }
}

fn bounds<'a>(depth: usize, git: GitEntries, asks: &Asks<'a>) -> Bounds<'a> {
    Bounds {
        entries: limits::VISITED,
        directory: limits::DIRECTORY,
        depth,
        git,
        open: asks.open,
        over: asks.over,
    }
}

/// Writes bytes under a name: as text where they are that, else as base64 under the name with `_b64`.
fn put_bytes(body: &mut Body, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => body.insert(name.to_owned(), json!(text)),
        Err(_) => body.insert(format!("{name}_b64"), json!(BASE64_STANDARD.encode(bytes))),
    };
}

fn file(
    root: &Root,
    path: &RelPath,
    range: Range,
    (encoding, digest): (Encoding, Flag),
) -> Result<Seen, Refusal> {
    let cost = Cost {
        given: limits::READ,
        digest: digested(digest),
        scan: limits::SCANNED,
    };
    let part = files::read_part(root, path, range, cost).map_err(host)?;
    let mut body = Body::new();
    put_path(&mut body, &part.resolved);
    body.insert("sha256".to_owned(), json!(part.sha256));
    body.insert("size_bytes".to_owned(), json!(part.size));
    body.insert("total_lines".to_owned(), json!(part.lines));
    if range != Range::Whole {
        match range {
            Range::Bytes { first, .. } => {
                body.insert("byte_offset".to_owned(), json!(first.min(part.size)));
                body.insert("bytes".to_owned(), json!(part.bytes.len()));
                body.insert("next_byte_offset".to_owned(), json!(part.next));
            }
            Range::Whole | Range::Lines { .. } | Range::Last(_) => {
                body.insert("first_line".to_owned(), json!(part.given.map(|(first, _)| first)));
                body.insert("last_line".to_owned(), json!(part.given.map(|(_, last)| last)));
                body.insert("next_offset".to_owned(), json!(part.next));
            }
        }
        body.insert("truncated".to_owned(), json!(part.cut == Cut::AtBound));
    }
    if part.steadiness == Steadiness::Changing {
        body.insert("changed_meanwhile".to_owned(), json!(true));
    }
    let (text, encoding) = match (encoding, String::from_utf8(part.bytes)) {
        (Encoding::Fitting | Encoding::Utf8, Ok(text)) => (text, "utf-8"),
        (Encoding::Base64, Ok(text)) => (BASE64_STANDARD.encode(text), "base64"),
        (Encoding::Fitting | Encoding::Base64, Err(error)) => {
            (BASE64_STANDARD.encode(error.as_bytes()), "base64")
        }
        (Encoding::Utf8, Err(error)) => {
            let why = if cuts_a_character(error.as_bytes()) {
                "the part begins or ends within a character: ask for base64, or for other bytes"
            } else {
                "it is not UTF-8: ask for base64"
            };
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .reason("not_utf8")
                .name(path.to_string()));
        }
    };
    body.insert("content".to_owned(), Value::String(text));
    body.insert("encoding".to_owned(), json!(encoding));
    let at = part.resolved;
    Ok(Seen { at, body })
}

/// Says whether bytes that are not UTF-8 are all the same a piece of a text, of whose first or last character a part is
/// missing.
fn cuts_a_character(bytes: &[u8]) -> bool {
    let within = |b: &&u8| (0x80..0xc0).contains(*b);
    let missed = bytes.iter().take(3).take_while(within).count();
    match std::str::from_utf8(&bytes[missed..]) {
        Ok(_) => missed > 0,
        // What would still come makes it whole.
        Err(error) => error.error_len().is_none(),
    }
}

fn info(root: &Root, path: &RelPath, digest: Flag) -> Result<Seen, Refusal> {
    let info = files::file_info(root, path, digested(digest)).map_err(host)?;
    let mut body = Body::new();
    put_path(&mut body, &info.resolved);
    body.insert("type".to_owned(), json!(info.kind.wire()));
    body.insert("size_bytes".to_owned(), json!(info.size));
    body.insert("mode".to_owned(), json!(format!("{:04o}", info.mode)));
    body.insert("links".to_owned(), json!(info.links));
    body.insert("sha256".to_owned(), json!(info.sha256));
    if let Some(why) = info.undigested {
        body.insert("undigested".to_owned(), json!(why.wire()));
    }
    let modified = u64::try_from(info.modified_ms).unwrap_or_default();
    body.insert("modified_at".to_owned(), json!(UnixMs(modified).to_string()));
    if let Some(target) = info.target {
        put_bytes(&mut body, "link_target", &target);
    }
    let at = info.resolved;
    Ok(Seen { at, body })
}

fn directory(
    root: &Root,
    path: &RelPath,
    (depth, page): (usize, &Page),
    asks: &Asks<'_>,
) -> Result<Seen, Refusal> {
    let git = match page.git {
        Flag::Set => GitEntries::Enter,
        Flag::Unset => GitEntries::Tell,
    };
    let found = found(root, path, (None, &[], page), &bounds(depth, git, asks))?;
    let mut body = Body::new();
    put_path(&mut body, found.walked.at.as_ref().unwrap_or(path));
    let entries = found.entries.iter().map(|entry| {
        let mut one = kind(entry);
        put_bytes(&mut one, "name", &entry.below);
        Value::Object(one)
    });
    body.insert("entries".to_owned(), entries.collect());
    put_walked(&mut body, &found.walked);
    let at = found.walked.at.unwrap_or_else(|| path.clone());
    Ok(Seen { at, body })
}

fn search(
    root: &Root,
    path: &RelPath,
    (pattern, exclude, page): (&[Glob], &[Glob], &Page),
    asks: &Asks<'_>,
) -> Result<Seen, Refusal> {
    let bounds = bounds(usize::MAX, entering(page.git), asks);
    let found = found(root, path, (Some(pattern), exclude, page), &bounds)?;
    let mut body = Body::new();
    put_path(&mut body, found.walked.at.as_ref().unwrap_or(path));
    let entries = found.entries.iter().map(|entry| {
        let mut one = kind(entry);
        put_path(&mut one, &entry.path);
        Value::Object(one)
    });
    body.insert("matches".to_owned(), entries.collect());
    put_walked(&mut body, &found.walked);
    let at = found.walked.at.unwrap_or_else(|| path.clone());
    Ok(Seen { at, body })
}

fn found(
    root: &Root,
    path: &RelPath,
    (pattern, exclude, page): (Option<&[Glob]>, &[Glob], &Page),
    bounds: &Bounds<'_>,
) -> Result<files::Found, Refusal> {
    let wanted = Wanted {
        pattern,
        exclude,
        after: page.after.as_ref(),
        most: page.most,
        bytes: limits::ANSWER,
    };
    files::search(root, path, &wanted, bounds).map_err(host)
}

fn kind(entry: &FoundEntry) -> Body {
    let mut one = Body::new();
    one.insert("type".to_owned(), json!(entry.kind.wire()));
    one.insert("size_bytes".to_owned(), json!(entry.size));
    one
}

/// Says how far a search came: whether all was looked at, how to go on, and what was passed by.
fn put_walked(body: &mut Body, walked: &Walked) {
    put_ended(body, walked);
    if walked.ended.is_some() {
        body.insert(
            "next_after".to_owned(),
            json!(walked.last.as_ref().map(RelPath::to_wire)),
        );
    }
    put_skipped(body, skipped(walked));
}

fn put_ended(body: &mut Body, walked: &Walked) {
    // A directory that was too large to be looked into may hold more of it.
    let truncated = walked.ended.is_some() || walked.skipped.too_many > 0;
    body.insert("truncated".to_owned(), json!(truncated));
    if let Some(ended) = walked.ended {
        let by = match ended {
            Ended::Entries => "entries",
            Ended::Results => "results",
            Ended::Time => "time",
        };
        body.insert("truncated_by".to_owned(), json!(by));
    }
}

fn skipped(walked: &Walked) -> Vec<(&'static str, u64)> {
    let skipped = walked.skipped;
    vec![
        ("git", skipped.git),
        ("policy", skipped.withheld),
        ("mounts", skipped.mounts),
        ("too_deep", skipped.too_deep),
        ("too_many_entries", skipped.too_many),
        ("unreadable", skipped.unreadable),
    ]
}

fn put_skipped(body: &mut Body, counts: Vec<(&'static str, u64)>) {
    let mut skipped = Body::new();
    for (name, count) in counts {
        let before = skipped.get(name).and_then(Value::as_u64).unwrap_or(0);
        if before + count > 0 {
            skipped.insert(name.to_owned(), json!(before + count));
        }
    }
    body.insert("skipped".to_owned(), Value::Object(skipped));
}

fn lines(found: &Grepped, tell: Tell) -> Body {
    let mut body = Body::new();
    match tell {
        Tell::Lines => {
            let hits = found.hits.iter().map(|hit| Value::Object(hit_shown(hit)));
            body.insert("matches".to_owned(), hits.collect());
        }
        Tell::Files => {
            let files = found.files.iter().map(|path| {
                let mut one = Body::new();
                put_path(&mut one, path);
                Value::Object(one)
            });
            body.insert("files".to_owned(), files.collect());
        }
    }
    body.insert("searched_files".to_owned(), json!(found.searched));
    put_ended(&mut body, &found.walked);
    let mut counts = skipped(&found.walked);
    counts.extend([
        ("binary", found.binary),
        ("unreadable", found.unreadable),
        ("special", found.special),
        ("long_lines", found.long_lines),
    ]);
    put_skipped(&mut body, counts);
    body
}

fn hit_shown(hit: &Hit) -> Body {
    let mut one = shown(&hit.shown);
    put_path(&mut one, &hit.path);
    one.insert("column".to_owned(), json!(hit.column));
    for (name, lines) in [("before", &hit.before), ("after", &hit.after)] {
        if !lines.is_empty() {
            let lines = lines.iter().map(|line| Value::Object(shown(line)));
            one.insert(name.to_owned(), lines.collect());
        }
    }
    one
}

fn shown(line: &Shown) -> Body {
    let mut one = Body::new();
    one.insert("line".to_owned(), json!(line.line));
    put_bytes(&mut one, "text", &line.text);
    if let Some(from) = line.cut {
        one.insert("cut".to_owned(), json!(true));
        one.insert("text_from_byte".to_owned(), json!(from));
    }
    one
}
