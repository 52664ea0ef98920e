//! The arguments of the tools that read.

use super::values::{Flag, Values};
use super::{Said, missing};
use crate::limits;
use semel_core::glob::{Case, Glob};
use semel_core::{Code, Refusal, RelPath};
use semel_host::files::range::Range;
use semel_host::files::{Pattern, Syntax, Tell};
use serde_json::{Value, json};

/// Is what a call that reads asks for.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    /// The content of a file.
    File {
        /// Which part of it.
        range: Range,
        /// As what.
        encoding: Encoding,
        /// Whether a large one is digested.
        digest: Flag,
    },
    /// What a directory holds.
    Directory {
        /// How many levels.
        depth: usize,
        /// Which page.
        page: Page,
    },
    /// What is known of an entry.
    Info {
        /// Whether a large file is digested.
        digest: Flag,
    },
    /// Entries by their names.
    Search {
        /// What they match, one of them.
        pattern: Vec<Glob>,
        /// What is passed by.
        exclude: Vec<Glob>,
        /// Which page.
        page: Page,
    },
    /// Lines of files.
    Grep {
        /// What they match.
        pattern: Pattern,
        /// Which files, one of them; none takes all.
        files: Vec<Glob>,
        /// What is passed by.
        exclude: Vec<Glob>,
        /// How many lines around each.
        context: usize,
        /// What is told.
        tell: Tell,
        /// How many.
        most: usize,
        /// Whether `.git` is looked into.
        git: Flag,
    },
}

/// Says which entries of many are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// How many.
    pub(crate) most: usize,
    /// Behind which one.
    pub(crate) after: Option<RelPath>,
    /// Whether `.git` is looked into.
    pub(crate) git: Flag,
}

/// Says as what a content is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// As text where it is that, else as base64.
    Fitting,
    /// As text, or not at all.
    Utf8,
    /// As base64.
    Base64,
}

impl Look {
    /// Says whether it may look at very much.
    pub(crate) fn is_search(&self) -> bool {
        match self {
            Look::File { .. } | Look::Info { .. } => false,
            Look::Directory { depth, .. } => *depth > 1,
            Look::Search { .. } | Look::Grep { .. } => true,
        }
    }
}

/// Reads the arguments of `read_file`.
pub(super) fn file(values: &mut Values<'_>) -> Result<Said, Refusal> {
    let counts = [
        "offset",
        "limit",
        "end_line",
        "head",
        "tail",
        "byte_offset",
        "byte_limit",
    ];
    let mut said = Said::nothing();
    let mut given = [None; 7];
    for (name, given) in counts.into_iter().zip(&mut given) {
        *given = values.count(name);
        said = said.counted(name, *given);
    }
    let [offset, limit, end, head, tail, byte_offset, byte_limit] = given;
    let view = values.lines("view_range")?;
    if let Some((first, last)) = view {
        said = said.and("view_range", json!([first, last]));
    }
    let lines = |first: u64, last: Option<u64>| match last {
        Some(last) if last < first => Err(Refusal::new(
            Code::BadInput,
            "the last line comes before the first",
        )
        .names(["offset", "end_line"])),
        last => Ok(Range::Lines {
            first,
            most: last.map_or(u64::MAX, |last| last - first + 1),
        }),
    };
    let range = match (view, offset, limit, end, head, tail, byte_offset.or(byte_limit)) {
        (Some((first, last)), ..) => lines(first, last)?,
        (_, _, _, _, Some(head), ..) => Range::Lines { first: 1, most: head },
        (_, _, _, _, _, Some(tail), _) => Range::Last(tail),
        (.., Some(_)) => Range::Bytes {
            first: byte_offset.unwrap_or(0),
            most: byte_limit.unwrap_or(u64::MAX),
        },
        (None, None, None, None, None, None, None) => Range::Whole,
        (None, offset, Some(limit), _, None, None, None) => Range::Lines {
            first: offset.unwrap_or(1),
            most: limit,
        },
        (None, offset, None, end, None, None, None) => lines(offset.unwrap_or(1), end)?,
    };
    let word = values.text("encoding");
    let encoding = match word.as_deref() {
        None => Encoding::Fitting,
        Some("base64") => Encoding::Base64,
        Some(_) => Encoding::Utf8,
    };
    if encoding != Encoding::Fitting {
        let name = if encoding == Encoding::Utf8 {
            "utf-8"
        } else {
            "base64"
        };
        said = said.and("encoding", json!(name));
    }
    let digest = values.flag("digest");
    Ok(said.flag("digest", digest).looking(Look::File {
        range,
        encoding,
        digest,
    }))
}

/// Reads the arguments of `list_directory`.
pub(super) fn directory(values: &mut Values<'_>) -> Result<Said, Refusal> {
    let deep = values.flag("recursive");
    let depth = values.count("depth");
    let said = Said::nothing().flag("recursive", deep).counted("depth", depth);
    let depth = match (depth, deep) {
        (Some(depth), _) => usize::try_from(depth).unwrap_or(usize::MAX),
        (None, Flag::Set) => usize::MAX,
        (None, Flag::Unset) => 1,
    };
    let (said, page) = page(values, said, limits::LISTED)?;
    Ok(said.looking(Look::Directory { depth, page }))
}

/// Reads the arguments of `get_file_info`.
pub(super) fn info(values: &mut Values<'_>) -> Said {
    let digest = values.flag("digest");
    Said::nothing()
        .flag("digest", digest)
        .looking(Look::Info { digest })
}

/// Reads the arguments of `search_files`.
pub(super) fn search(values: &mut Values<'_>) -> Result<Said, Refusal> {
    let case = match values.flag("ignore_case") {
        Flag::Set => Case::Insensitive,
        Flag::Unset => Case::Sensitive,
    };
    let mut said = Said::nothing();
    let pattern = values.texts("pattern")?;
    if pattern.is_empty() {
        return Err(missing("pattern"));
    }
    let exclude = values.texts("exclude")?;
    said = said.listed("pattern", &pattern).listed("exclude", &exclude);
    if case == Case::Insensitive {
        said = said.and("ignore_case", json!(true));
    }
    let (said, page) = page(values, said, limits::FOUND)?;
    Ok(said.looking(Look::Search {
        pattern: globs("pattern", &pattern, case)?,
        exclude: globs("exclude", &exclude, case)?,
        page,
    }))
}

/// Reads the arguments of `grep`.
pub(super) fn grep(values: &mut Values<'_>) -> Result<Said, Refusal> {
    let text = values.text("pattern").ok_or_else(|| missing("pattern"))?;
    let case = match (values.text("case").as_deref(), values.flag("ignore_case")) {
        (Some("insensitive"), _) | (None, Flag::Set) => Case::Insensitive,
        _ => Case::Sensitive,
    };
    let syntax = match values.flag("fixed") {
        Flag::Set => Syntax::Fixed,
        Flag::Unset => Syntax::Regex,
    };
    let tell = match values.flag("files_only") {
        Flag::Set => Tell::Files,
        Flag::Unset => Tell::Lines,
    };
    let (files, exclude) = (values.texts("glob")?, values.texts("exclude")?);
    let (context, most) = (values.count("context"), values.count("max_results"));
    let git = values.flag("include_git");
    let set = |set| if set { Flag::Set } else { Flag::Unset };
    let said = Said::new("pattern", json!(text))
        .flag("ignore_case", set(case == Case::Insensitive))
        .flag("fixed", set(syntax == Syntax::Fixed))
        .flag("files_only", set(tell == Tell::Files))
        .flag("include_git", git)
        .listed("glob", &files)
        .listed("exclude", &exclude)
        .counted("context", context.filter(|n| *n > 0))
        .counted("max_results", most);
    Ok(said.looking(Look::Grep {
        pattern: Pattern::parse(&text, syntax, case).map_err(semel_host::Error::into_refusal)?,
        files: globs("glob", &files, Case::Sensitive)?,
        exclude: globs("exclude", &exclude, Case::Sensitive)?,
        context: context.map_or(0, fits),
        tell,
        most: most.map_or(limits::MATCHES_UNASKED, fits),
        git,
    }))
}

/// Bounded by its form.
fn fits(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn page(values: &mut Values<'_>, said: Said, unasked: usize) -> Result<(Said, Page), Refusal> {
    let most = values.count("max_results");
    let after = values.text("after").map(RelPath::try_from).transpose()?;
    let git = values.flag("include_git");
    let mut said = said.counted("max_results", most).flag("include_git", git);
    if let Some(after) = &after {
        said = said.and("after", json!(after.to_wire()));
    }
    let most = most.map_or(unasked, fits);
    Ok((said, Page { most, after, git }))
}

fn globs(name: &str, texts: &[String], case: Case) -> Result<Vec<Glob>, Refusal> {
    let globs = texts.iter().map(|text| Glob::parse(text.as_bytes(), case));
    globs
        .collect::<Result<_, _>>()
        .map_err(|refusal| refusal.name(name))
}

impl Said {
    fn counted(self, name: &str, count: Option<u64>) -> Self {
        match count {
            Some(count) => self.and(name, json!(count)),
            None => self,
        }
    }

    fn listed(self, name: &str, texts: &[String]) -> Self {
        match texts {
            [] => self,
            texts => self.and(name, Value::from(texts)),
        }
    }

    fn looking(self, look: Look) -> Self {
        self.with(super::Args::Look(Box::new(look)))
    }
}
