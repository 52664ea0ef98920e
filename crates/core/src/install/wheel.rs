//! An installed distribution against its wheel: which member each file comes from, and what an installer makes itself.
//!
//! `RECORD` is written by the installer and is not believed: it says which files there are, the wheel says what is in
//! them. What no member is the origin of follows from a rule: entry points become scripts of a known form, scripts
//! get the interpreter of this environment as their first line, and a few files say who installed.

use super::venv::{Venv, is_own_python};
use super::{Fact, mismatch};
use crate::artifact::Held;
use crate::code::Refusal;
use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet};

/// Files of a `.dist-info` that an installer writes itself.
const MADE: &[&[u8]] = &[
    b"INSTALLER",
    b"RECORD",
    b"REQUESTED",
    b"direct_url.json",
    b"uv_build.json",
    b"uv_cache.json",
];

/// Where a member has its place.
enum Spot {
    /// At this path of the environment.
    At(RelPath),
    /// A script, in `bin`.
    Script(RelPath),
    /// A header, somewhere beneath `include`.
    Header,
}

/// Holds a wheel, and what was found of it.
pub(super) struct Wheel<'a> {
    held: &'a Held,
    venv: &'a Venv<'a>,
    /// Members by their place in the environment.
    places: BTreeMap<RelPath, (&'a RelPath, &'a Fact)>,
    scripts: BTreeMap<RelPath, (&'a RelPath, &'a Fact)>,
    headers: BTreeSet<crate::digest::Sha256>,
    entry_points: BTreeMap<RelPath, EntryPoint>,
}

#[derive(Clone)]
struct EntryPoint {
    module: String,
    call: String,
}

impl<'a> Wheel<'a> {
    /// Places the members of a wheel in an environment.
    pub(super) fn open(held: &'a Held, venv: &'a Venv<'a>) -> Result<Self, Refusal> {
        let mut wheel = Self {
            held,
            venv,
            places: BTreeMap::new(),
            scripts: BTreeMap::new(),
            headers: BTreeSet::new(),
            entry_points: BTreeMap::new(),
        };
        for (member, fact) in &held.members {
            let Fact::File { sha256, .. } = fact else {
                return Err(wheel.wrong("a wheel has a member that is no file", member));
            };
            match wheel.spot(member)? {
                Spot::At(path) => drop(wheel.places.insert(path, (member, fact))),
                Spot::Script(path) => drop(wheel.scripts.insert(path, (member, fact))),
                Spot::Header => drop(wheel.headers.insert(*sha256)),
            }
        }
        wheel.read_entry_points()?;
        Ok(wheel)
    }

    fn spot(&self, member: &RelPath) -> Result<Spot, Refusal> {
        let parts: Vec<&[u8]> = member.components().collect();
        let under = |base: &RelPath, rest: &[&[u8]]| -> Result<RelPath, Refusal> {
            let whole = [base.as_bytes(), b"/", &rest.join(&b'/')].concat();
            RelPath::parse(whole.strip_prefix(b"/").unwrap_or(&whole))
        };
        match parts.as_slice() {
            [data, scheme, rest @ ..] if data.ends_with(b".data") && !rest.is_empty() => match *scheme {
                b"purelib" | b"platlib" => Ok(Spot::At(under(&self.venv.site, rest)?)),
                b"data" => Ok(Spot::At(under(&RelPath::root(), rest)?)),
                b"scripts" => Ok(Spot::Script(under(&RelPath::parse(b"bin")?, rest)?)),
                b"headers" => Ok(Spot::Header),
                _ => Err(self.wrong("a wheel has data that no installer places", member)),
            },
            _ => Ok(Spot::At(under(&self.venv.site, &parts)?)),
        }
    }

    /// # Source
    /// PyPA, "Entry points specification".
    fn read_entry_points(&mut self) -> Result<(), Refusal> {
        let texts = self.held.texts.iter();
        let text = texts.into_iter().find(|(path, _)| {
            let parts: Vec<&[u8]> = path.components().collect();
            matches!(parts.as_slice(), [info, b"entry_points.txt"] if info.ends_with(b".dist-info"))
        });
        let Some((path, text)) = text else {
            return Ok(());
        };
        let text = core::str::from_utf8(text).map_err(|_| self.wrong("entry points are not UTF-8", path))?;
        let mut scripts = false;
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                scripts = matches!(section.trim(), "console_scripts" | "gui_scripts");
            } else if scripts && !line.is_empty() && !line.starts_with(['#', ';']) {
                let (name, target) = line
                    .split_once('=')
                    .ok_or_else(|| self.wrong("an entry point is not understood", path))?;
                let target = target.split('[').next().unwrap_or(target);
                let (module, call) = target.split_once(':').unwrap_or((target, ""));
                let at = RelPath::parse(b"bin")?.join(name.trim().as_bytes())?;
                let point = EntryPoint {
                    module: module.trim().to_owned(),
                    call: call.trim().to_owned(),
                };
                self.entry_points.insert(at, point);
            }
        }
        Ok(())
    }

    /// Proves that every file of the distribution comes from the wheel, and that every member was installed.
    ///
    /// # Errors
    /// `record_mismatch`, with the file named.
    pub(super) fn covers(&self, files: &BTreeSet<RelPath>, info: &RelPath) -> Result<(), Refusal> {
        for path in files {
            self.comes_from_here(path, info)?;
        }
        let wanted = self.places.keys().chain(self.scripts.keys());
        for path in wanted {
            let made = path
                .split_last()
                .is_some_and(|(parent, name)| parent == *info && is_made(name));
            if !files.contains(path) && !made {
                return Err(self.wrong("a file of the locked wheel is not installed", path));
            }
        }
        let points = self.entry_points.keys().filter(|path| !files.contains(*path));
        match points.into_iter().next() {
            Some(path) => Err(self.wrong("an entry point of the locked wheel is not installed", path)),
            None => Ok(()),
        }
    }

    fn comes_from_here(&self, path: &RelPath, info: &RelPath) -> Result<(), Refusal> {
        let fact = self.venv.observed.entries.get(path);
        let Some(Fact::File { mode, sha256, .. }) = fact else {
            return Err(self.wrong("an installed file is missing", path));
        };
        let (parent, name) = path.split_last().unwrap_or((RelPath::root(), b""));
        if parent == *info && is_made(name) {
            return self.plain_mode(path, *mode, 0);
        }
        if let Some((
            _,
            Fact::File {
                sha256: wanted,
                mode: own,
                ..
            },
        )) = self.places.get(path)
        {
            return match wanted == sha256 {
                true => self.plain_mode(path, *mode, *own),
                false => Err(self.wrong("an installed file is not the one in the locked wheel", path)),
            };
        }
        if let Some((member, Fact::File { sha256: wanted, .. })) = self.scripts.get(path) {
            let same = wanted == sha256 || self.is_rewritten(path, member)?;
            return match same {
                true => self.plain_mode(path, *mode, 0o111),
                false => Err(self.wrong("an installed script is not the one in the locked wheel", path)),
            };
        }
        if let Some(point) = self.entry_point(path) {
            let text = self.venv.observed.text(path)?;
            return match is_generated(text, &point) {
                true => self.plain_mode(path, *mode, 0o111),
                false => Err(self.wrong("a generated script is not as installers write it", path)),
            };
        }
        if path.components().next() == Some(b"include") && self.headers.contains(sha256) {
            return self.plain_mode(path, *mode, 0o111);
        }
        Err(self.wrong("an installed file is not in the locked wheel", path))
    }

    /// Finds the entry point of a script; pip makes further names for its own.
    fn entry_point(&self, path: &RelPath) -> Option<EntryPoint> {
        let own = |at: &[u8]| {
            let at = RelPath::parse(at).ok()?;
            self.entry_points.get(&at).cloned()
        };
        let versioned = path.as_bytes().strip_prefix(b"bin/pip").is_some_and(is_version);
        self.entry_points
            .get(path)
            .cloned()
            .or_else(|| own(b"bin/pip").filter(|_| versioned))
    }

    /// Says whether a script differs from its member in the first line alone, which names this environment's Python.
    fn is_rewritten(&self, path: &RelPath, member: &RelPath) -> Result<bool, Refusal> {
        let Some(shipped) = self.held.texts.get(member) else {
            return Ok(false);
        };
        let installed = self.venv.observed.whole(path)?;
        let after = |text: &[u8]| {
            text.iter()
                .position(|b| *b == b'\n')
                .map(|at| text[at + 1..].to_vec())
        };
        let (Some(wanted), Some(mut rest)) = (after(shipped), after(installed)) else {
            return Ok(false);
        };
        let line = installed.split(|b| *b == b'\n').next().unwrap_or_default();
        let program = line.strip_prefix(b"#!").unwrap_or_default();
        if program == b"/bin/sh" {
            // The interpreter in the second line is looked at with those of all scripts.
            for _ in 0..2 {
                rest = after(&rest).unwrap_or_default();
            }
            return Ok(rest == wanted);
        }
        Ok(is_own_python(self.venv.place, program) && rest == wanted)
    }

    /// Refuses a mode that lets others write, changes the user, or runs what no artifact says is run.
    fn plain_mode(&self, path: &RelPath, mode: u32, own: u32) -> Result<(), Refusal> {
        let runs = mode & 0o111 != 0 && own & 0o111 == 0;
        match mode & 0o7002 != 0 || runs {
            true => Err(self.wrong(
                "an installed file has a mode that its artifact does not give it",
                path,
            )),
            false => Ok(()),
        }
    }

    fn wrong(&self, why: &str, path: &RelPath) -> Refusal {
        mismatch(why).names([self.held.file.clone(), path.to_string()])
    }
}

fn is_made(name: &[u8]) -> bool {
    MADE.contains(&name)
}

fn is_version(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_digit() || *b == b'.')
}

/// Says whether a script is what an installer writes for an entry point: nothing but lines that are known, among them
/// the one that imports and the one that calls.
fn is_generated(text: &str, point: &EntryPoint) -> bool {
    const KNOWN: &[&str] = &[
        "",
        "# -*- coding: utf-8 -*-",
        "import re",
        "import sys",
        "if __name__ == \"__main__\":",
        "    sys.argv[0] = re.sub(r\"(-script\\.pyw|\\.exe)?$\", \"\", sys.argv[0])",
        "    sys.argv[0] = re.sub(r\"(-script\\.pyw?|\\.exe)?$\", \"\", sys.argv[0])",
        "    if sys.argv[0].endswith(\"-script.pyw\"):",
        "    if sys.argv[0].endswith(\".exe\"):",
        "    elif sys.argv[0].endswith(\".exe\"):",
        "        sys.argv[0] = sys.argv[0][:-11]",
        "        sys.argv[0] = sys.argv[0][:-4]",
        "    sys.argv[0] = sys.argv[0].removesuffix(\".exe\")",
    ];
    let mut lines = text.lines();
    match lines.next() {
        // The three lines of a path that the kernel does not take; the second is looked at with those of all scripts.
        Some("#!/bin/sh") => {
            if lines.nth(1) != Some("' '''") {
                return false;
            }
        }
        Some(line) if line.starts_with("#!") => {}
        _ => return false,
    }
    let first = point.call.split('.').next().unwrap_or("");
    let import = format!("from {} import {first}", point.module);
    let call = format!("    sys.exit({}())", point.call);
    let (mut imports, mut calls) = (0, 0);
    for line in lines {
        let line = line.trim_end().replace('\'', "\"");
        if line == import {
            imports += 1;
        } else if line == call {
            calls += 1;
        } else if !KNOWN.contains(&line.as_str()) {
            return false;
        }
    }
    (imports, calls) == (1, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(text: &str) -> bool {
        let point = EntryPoint {
            module: "leaf.cli".to_owned(),
            call: "App.main".to_owned(),
        };
        is_generated(text, &point)
    }

    #[test]
    fn scripts_of_each_installer_are_known() {
        let uv = "#!/e/bin/python\n# -*- coding: utf-8 -*-\nimport sys\nfrom leaf.cli import App\nif __name__ == \"__main__\":\n    if sys.argv[0].endswith(\"-script.pyw\"):\n        sys.argv[0] = sys.argv[0][:-11]\n    elif sys.argv[0].endswith(\".exe\"):\n        sys.argv[0] = sys.argv[0][:-4]\n    sys.exit(App.main())\n";
        let pip = "#!/e/bin/python\n# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom leaf.cli import App\nif __name__ == '__main__':\n    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\n    sys.exit(App.main())\n";
        let long = pip.replacen(
            "#!/e/bin/python\n",
            "#!/bin/sh\n'''exec' /e/bin/python \"$0\" \"$@\"\n' '''\n",
            1,
        );
        for text in [uv, pip, &long] {
            assert!(generated(text), "{text}");
        }
        for bad in [
            uv.replace("import sys\n", "import sys\nimport evil\n"),
            uv.replace("    sys.exit(App.main())\n", "    sys.exit(0)\n"),
            uv.replace("from leaf.cli import App\n", ""),
            uv.replace("leaf.cli", "leaf.evil"),
            uv.replace("App.main()", "App.main(); import evil"),
            format!("{uv}from leaf.cli import App\n"),
            long.replace("' '''\n", "' '''; import evil\n"),
            String::new(),
        ] {
            assert!(!generated(&bad), "{bad}");
        }
    }
}
