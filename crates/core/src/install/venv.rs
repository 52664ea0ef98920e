//! The frame of a virtual environment: what no distribution owns, and where everything in it leads.
//!
//! Scaffold, interpreter, import paths and scripts are checked by rule; which distributions belong there is the
//! business of [`super::python`].

use super::python::decode_percent;
use super::{
    Fact, MOST_NAMES, Observed, Place, below, lexical, lies_in, link_target, mismatch, outside, special,
    stays,
};
use crate::code::{Code, Refusal};
use crate::path::{RelPath, shown};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Holds an environment while it is bound.
pub(super) struct Venv<'a> {
    pub(super) observed: &'a Observed,
    pub(super) place: &'a Place,
    pub(super) site: RelPath,
    /// Who owns each file.
    pub(super) owners: BTreeMap<RelPath, String>,
}

/// The files of a virtual environment that uv, `venv` and virtualenv make and no distribution owns.
const SCAFFOLD: &[&[u8]] = &[
    b"pyvenv.cfg",
    b".gitignore",
    b".lock",
    b"CACHEDIR.TAG",
    b"bin/activate",
    b"bin/activate.bat",
    b"bin/activate.csh",
    b"bin/activate.fish",
    b"bin/activate.nu",
    b"bin/activate.ps1",
    b"bin/Activate.ps1",
    b"bin/activate.xsh",
    b"bin/activate_this.py",
    b"bin/deactivate.bat",
    b"bin/deactivate.csh",
    b"bin/pydoc.bat",
];

impl<'a> Venv<'a> {
    pub(super) fn open(observed: &'a Observed, place: &'a Place) -> Result<Self, Refusal> {
        let is_site = |path: &RelPath| {
            let parts: Vec<&[u8]> = path.components().collect();
            parts.len() == 3 && parts[1].starts_with(b"python") && parts[2] == b"site-packages"
        };
        let mut sites = observed.entries.keys().filter(|p| is_site(p));
        let (Some(site), None) = (sites.next(), sites.next()) else {
            return Err(
                mismatch("a virtual environment has exactly one site-packages directory")
                    .name(observed.root.to_string()),
            );
        };
        Ok(Self {
            observed,
            place,
            site: site.clone(),
            owners: BTreeMap::new(),
        })
    }

    /// Checks what no distribution owns, and owns it.
    pub(super) fn scaffold(&mut self) -> Result<(), Refusal> {
        let config = RelPath::parse(b"pyvenv.cfg")?;
        self.config(self.observed.text(&config)?)?;
        for (path, fact) in &self.observed.entries {
            match fact {
                Fact::File { .. } if SCAFFOLD.contains(&path.as_bytes()) => {
                    self.owners.insert(path.clone(), "scaffold".to_owned());
                }
                Fact::Symlink { target } => {
                    self.link(path, target)?;
                    self.owners.insert(path.clone(), "scaffold".to_owned());
                }
                Fact::Other => return Err(special(path)),
                Fact::File { .. } | Fact::Directory { .. } => {}
            }
        }
        Ok(())
    }

    fn config(&self, text: &str) -> Result<(), Refusal> {
        let wrong = |why: &str, line: &str| mismatch(why).names(["pyvenv.cfg", line]);
        let mut keys: BTreeMap<String, &str> = BTreeMap::new();
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            let pair = line
                .split_once('=')
                .ok_or_else(|| wrong("pyvenv.cfg is not understood", line))?;
            if keys
                .insert(pair.0.trim().to_ascii_lowercase(), pair.1.trim())
                .is_some()
            {
                return Err(wrong("pyvenv.cfg says something twice", line));
            }
        }
        if keys.get("include-system-site-packages") != Some(&"false") {
            return Err(wrong(
                "the packages of the system are not shut out",
                "include-system-site-packages",
            ));
        }
        self.home(keys.get("home").copied().unwrap_or(""))?;
        let version = keys.get("version_info").or_else(|| keys.get("version"));
        let minor: Option<Vec<&str>> = version.map(|v| v.split('.').take(2).collect());
        if let Some(minor) = minor {
            let wanted = format!("python{}", minor.join("."));
            if self.site.components().nth(1) != Some(wanted.as_bytes()) {
                return Err(wrong("pyvenv.cfg is of another version of Python", &wanted));
            }
        }
        Ok(())
    }

    fn home(&self, home: &str) -> Result<(), Refusal> {
        let whole = lexical(home.as_bytes());
        match self.interpreter_dirs().any(|dir| Some(dir) == whole) {
            true => Ok(()),
            false => Err(outside("pyvenv.cfg names another interpreter").name(home)),
        }
    }

    /// Checks that every interpreter that `pyvenv.cfg` names is the one that the links lead to: where a link was changed,
    /// the two differ. What cannot be read names none.
    pub(super) fn home_stays(&self) -> Result<(), Refusal> {
        let config = RelPath::parse(b"pyvenv.cfg")?;
        let Ok(text) = self.observed.text(&config) else {
            return Ok(());
        };
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let mut homes = pairs.filter(|(key, _)| key.trim().eq_ignore_ascii_case("home"));
        homes.try_for_each(|(_, home)| self.home(home.trim()))
    }

    fn interpreter_dirs(&self) -> impl Iterator<Item = Vec<u8>> {
        self.place.interpreters.iter().filter_map(|path| {
            let whole = lexical(path)?;
            let cut = whole.iter().rposition(|b| *b == b'/')?;
            Some(whole[..cut].to_vec())
        })
    }

    /// Takes `lib64` and the interpreter's names; any other link is refused.
    fn link(&self, path: &RelPath, target: &[u8]) -> Result<(), Refusal> {
        if path.as_bytes() == b"lib64" && target == b"lib" {
            return Ok(());
        }
        let whole = link_target(self.place, path, target);
        let named = path.as_bytes().strip_prefix(b"bin/").is_some_and(is_python);
        if named {
            let whole = whole.clone().unwrap_or_default();
            let sibling = below(self.place, &whole)
                .is_some_and(|to| to != *path && to.as_bytes().strip_prefix(b"bin/").is_some_and(is_python));
            let base = whole.rsplit(|b| *b == b'/').next().unwrap_or(b"");
            let parent = &whole[..whole.len() - (base.len() + 1).min(whole.len())];
            if sibling || is_python(base) && self.interpreter_dirs().any(|d| d == parent) {
                return Ok(());
            }
            return Err(outside("the environment runs another interpreter")
                .name(format!("{path} -> {}", shown(target))));
        }
        stays(self.place, path, target)?;
        Err(mismatch("nothing owns a symlink").name(format!("{path} -> {}", shown(target))))
    }

    /// Checks where every link leads, and nothing else of it.
    pub(super) fn links_stay(&self) -> Result<(), Refusal> {
        for (path, fact) in &self.observed.entries {
            if let Fact::Symlink { target } = fact
                && let Err(refusal) = self.link(path, target)
                && refusal.code == Code::RecordOutsideRoot
            {
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Checks where the sources of every editable install lie, by its `direct_url.json`.
    pub(super) fn editables_stay(&self) -> Result<(), Refusal> {
        for (path, text) in &self.observed.texts {
            let Some((info, b"direct_url.json")) = path.split_last() else {
                continue;
            };
            let Some((_, name)) = info.split_last().filter(|(parent, _)| *parent == self.site) else {
                continue;
            };
            let Ok(direct) = serde_json::from_slice::<Editable>(text) else {
                continue;
            };
            let target = direct
                .url
                .strip_prefix("file://")
                .map(|path| decode_percent(path.as_bytes()));
            if direct.dir_info.editable && !target.is_some_and(|target| lies_in(&target, &self.place.tree)) {
                return Err(outside("an editable install leads out of this generation")
                    .names([shown(name), direct.url]));
            }
        }
        Ok(())
    }

    pub(super) fn nothing_unowned(&self) -> Result<(), Refusal> {
        let mut stray = Vec::new();
        let mut needed: BTreeSet<RelPath> = BTreeSet::new();
        for path in self.owners.keys() {
            let mut at = path.clone();
            while let Some((parent, _)) = at.split_last() {
                if !needed.insert(parent.clone()) {
                    break;
                }
                at = parent;
            }
        }
        for (path, fact) in &self.observed.entries {
            let owned = match fact {
                Fact::Directory { .. } => needed.contains(path) || self.is_scaffold_dir(path),
                _ => self.owners.contains_key(path),
            };
            if !owned {
                stray.push(path.to_string());
            }
        }
        match stray.len() {
            0 => Ok(()),
            n => Err(mismatch(&format!("nothing owns {n} entries of the environment"))
                .names(stray.into_iter().take(MOST_NAMES))),
        }
    }

    fn is_scaffold_dir(&self, path: &RelPath) -> bool {
        let parts: Vec<&[u8]> = path.components().collect();
        match parts.as_slice() {
            [top] => matches!(*top, b"bin" | b"lib" | b"include"),
            [top, version] => matches!(*top, b"lib" | b"include") && version.starts_with(b"python"),
            _ => *path == self.site,
        }
    }

    /// Checks every import path that a `.pth` or an editable finder adds.
    pub(super) fn paths_stay(&self) -> Result<(), Refusal> {
        for path in self.observed.entries.keys() {
            let Some((parent, name)) = path.split_last() else {
                continue;
            };
            if parent != self.site {
                continue;
            }
            let from = [&self.place.root, &b"/"[..], self.site.as_bytes()].concat();
            if name.ends_with(b".pth") {
                for line in self
                    .observed
                    .whole(path)?
                    .split(|b| *b == b'\n')
                    .map(<[u8]>::trim_ascii)
                {
                    // An import line is code of the distribution that owns the file, as any of its modules is.
                    if line.is_empty() || line.starts_with(b"#") || line.starts_with(b"import ") {
                        continue;
                    }
                    let whole = if line.starts_with(b"/") {
                        line.to_vec()
                    } else {
                        [&from, &b"/"[..], line].concat()
                    };
                    self.inside(path, &whole)?;
                }
            } else if is_finder(name) {
                for quoted in absolute_texts(self.observed.whole(path)?) {
                    self.inside(path, quoted)?;
                }
            }
        }
        Ok(())
    }

    fn inside(&self, path: &RelPath, target: &[u8]) -> Result<(), Refusal> {
        match lies_in(target, &self.place.tree) || lies_in(target, &self.place.root) {
            true => Ok(()),
            false => Err(outside("an import path leads out of this generation")
                .name(format!("{path} -> {}", shown(target)))),
        }
    }

    /// Checks the interpreter that each script names.
    pub(super) fn scripts_stay(&self) -> Result<(), Refusal> {
        for (path, fact) in &self.observed.entries {
            let in_bin = path
                .split_last()
                .is_some_and(|(parent, _)| parent.as_bytes() == b"bin");
            let Fact::File { .. } = fact else { continue };
            if !in_bin {
                continue;
            }
            let head = self
                .observed
                .texts
                .get(path)
                .ok_or_else(|| mismatch("a script cannot be read").name(path.to_string()))?;
            let Some(first) = head.strip_prefix(b"#!") else {
                continue;
            };
            let mut lines = first.split(|b| *b == b'\n');
            let line = lines.next().unwrap_or(b"").trim_ascii();
            let program = line.split(|b| *b == b' ').next().unwrap_or(b"");
            let program = match lines.next() {
                Some(second) if program == b"/bin/sh" && second.starts_with(b"'''") => {
                    in_shell_line(second).unwrap_or(b"")
                }
                _ => program,
            };
            let own = is_own_python(self.place, program);
            let shell = matches!(
                program,
                b"/bin/sh" | b"/bin/bash" | b"/usr/bin/bash" | b"/usr/bin/env"
            );
            if !own && !shell {
                return Err(outside("a script runs another interpreter")
                    .name(format!("{path}: #!{}", shown(program))));
            }
        }
        Ok(())
    }
}

/// Is what a `direct_url.json` says of an editable install.
#[derive(Deserialize)]
struct Editable {
    url: String,
    dir_info: DirInfo,
}

#[derive(Deserialize)]
struct DirInfo {
    #[serde(default)]
    editable: bool,
}

/// Recognises the module by which an editable install finds its sources.
pub(super) fn is_finder(name: &[u8]) -> bool {
    name.starts_with(b"__editable__") && name.ends_with(b".py")
}

/// Gives the interpreter of a script whose path is too long for the kernel, or has a space in it: installers write
/// it as `'''exec' "/…/python" "$0" "$@"`, in double quotes, in single ones or in none. Nothing else may stand there.
fn in_shell_line(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"'''exec' ")?.strip_suffix(b" \"$0\" \"$@\"")?;
    let program = match rest.first()? {
        quote @ (b'\'' | b'"') => rest.strip_prefix(&[*quote])?.strip_suffix(&[*quote])?,
        _ => rest,
    };
    let plain = |b: &u8| !matches!(b, b'\'' | b'"' | b'$' | b'`' | b'\\');
    program.iter().all(plain).then_some(program)
}

/// Says whether a program is the Python of this environment.
pub(super) fn is_own_python(place: &Place, program: &[u8]) -> bool {
    below(place, program).is_some_and(|p| p.as_bytes().strip_prefix(b"bin/").is_some_and(is_python))
}

/// Recognises `python`, `python3`, `python3.11` and no other name.
fn is_python(name: &[u8]) -> bool {
    name.strip_prefix(b"python")
        .is_some_and(|rest| rest.iter().all(|b| b.is_ascii_digit() || *b == b'.'))
}

/// Finds the quoted texts of a Python file that are absolute paths.
fn absolute_texts(source: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = source.split(|b| matches!(*b, b'\'' | b'"' | b'\n'));
    parts.filter(|text| text.len() > 1 && text.starts_with(b"/"))
}
