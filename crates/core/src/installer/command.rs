//! What a job installs with: installers that Semel knows, and at most one command of the job's own.

use super::Installer;
use crate::code::{Code, Refusal};
use serde::de::{self, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Holds everything that a job installs with.
///
/// # Shape
/// A list, in which each element is as [`Stated`] has it: `["uv", ["make", "assets"]]`, `["uv", "make assets"]`. One
/// element may stand without the list: `"pdm sync --prod"`. There is at most one command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installs {
    /// The installers; only their lockfiles need hashes.
    pub known: Vec<Installer>,
    /// The command; it runs after them.
    pub command: Option<InstallCommand>,
}

impl Installs {
    /// Says whether nothing is installed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty() && self.command.is_none()
    }

    /// Gathers what was stated.
    ///
    /// # Errors
    /// `bad_input` for a second command.
    pub fn gather(stated: impl IntoIterator<Item = Stated>) -> Result<Self, Refusal> {
        let mut all = Self::default();
        for one in stated {
            match one {
                Stated::Installer(installer) => all.known.push(installer),
                Stated::Command(command) => {
                    if let Some(first) = all.command.replace(command) {
                        let why = "a job installs by one command; let a script of the tree run several";
                        return Err(Refusal::new(Code::BadInput, why).name(first.to_string()));
                    }
                }
            }
        }
        Ok(all)
    }
}

/// Is one thing that a job installs with.
///
/// # Shape
/// A text: one word without a slash is the name of an installer, and nothing else, so that a misspelt name is never
/// run; anything else is a command, split at white space. Or a list of texts: a command, word by word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stated {
    /// An installer.
    Installer(Installer),
    /// A command.
    Command(InstallCommand),
}

impl Stated {
    /// Reads a text.
    ///
    /// # Errors
    /// `bad_input`, listing the names, for a word that is none of them; for nothing.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let [word] = &words[..] else {
            return InstallCommand::new(words).map(Self::Command);
        };
        if word.contains('/') {
            return InstallCommand::new(words).map(Self::Command);
        }
        let known = Installer::ALL.iter().find(|known| known.name() == word);
        known.copied().map(Self::Installer).ok_or_else(|| {
            let names: Vec<&str> = Installer::ALL.iter().map(|known| known.name()).collect();
            let why = format!(
                "{word} is no installer: {}; a command of your own has arguments or a slash, or stands in the job \
                 file as a list of its words",
                names.join(", ")
            );
            Refusal::new(Code::BadInput, why).name(word.clone())
        })
    }
}

impl core::str::FromStr for Stated {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::parse(text)
    }
}

/// Is a command that installs: a program and its arguments.
///
/// # Shape
/// A list of texts. The program is a name, an absolute path, or a path in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallCommand(Vec<String>);

impl InstallCommand {
    /// Takes the words of a command.
    ///
    /// # Errors
    /// `bad_input` for no program, and for a NUL.
    pub fn new(words: Vec<String>) -> Result<Self, Refusal> {
        if words.first().is_none_or(String::is_empty) {
            return Err(Refusal::new(Code::BadInput, "the install command is empty").name("certify.install"));
        }
        if let Some(word) = words.iter().find(|word| word.contains('\0')) {
            let why = "a word of the install command holds a NUL";
            return Err(Refusal::new(Code::BadInput, why).name(word.escape_default().to_string()));
        }
        Ok(Self(words))
    }

    /// Gives the program.
    #[must_use]
    pub fn program(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Gives the name of the program without the directories before it.
    #[must_use]
    pub fn program_name(&self) -> &str {
        self.program().rsplit('/').next().unwrap_or_default()
    }

    /// Gives the arguments.
    #[must_use]
    pub fn args(&self) -> &[String] {
        self.0.get(1..).unwrap_or_default()
    }

    /// Gives program and arguments.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.0
    }
}

impl core::fmt::Display for InstallCommand {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (at, word) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(" ")?;
            }
            let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '\\');
            match !word.is_empty() && word.chars().all(plain) {
                true => f.write_str(word)?,
                false => write!(f, "{word:?}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for Installs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let more = usize::from(self.command.is_some());
        let mut all = serializer.serialize_seq(Some(self.known.len() + more))?;
        for installer in &self.known {
            all.serialize_element(installer)?;
        }
        if let Some(command) = &self.command {
            all.serialize_element(command.words())?;
        }
        all.end()
    }
}

impl<'de> Deserialize<'de> for Stated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(One)
    }
}

impl<'de> Deserialize<'de> for Installs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(All)
    }
}

struct One;

impl<'de> Visitor<'de> for One {
    type Value = Stated;

    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the name of an installer, or a command as a text or a list of its words")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Stated, E> {
        Stated::parse(text).map_err(|refusal| E::custom(refusal.why))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Stated, A::Error> {
        let mut words = Vec::new();
        while let Some(word) = seq.next_element()? {
            words.push(word);
        }
        let command = InstallCommand::new(words).map_err(|refusal| de::Error::custom(refusal.why))?;
        Ok(Stated::Command(command))
    }
}

struct All;

impl<'de> Visitor<'de> for All {
    type Value = Installs;

    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a list of installers, with at most one command, or one of these alone")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Installs, E> {
        let one = Stated::parse(text).and_then(|one| Installs::gather([one]));
        one.map_err(|refusal| E::custom(refusal.why))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Installs, A::Error> {
        let mut stated: Vec<Stated> = Vec::new();
        while let Some(one) = seq.next_element()? {
            stated.push(one);
        }
        Installs::gather(stated).map_err(|refusal| de::Error::custom(refusal.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Installs, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    fn command(words: &[&str]) -> Option<InstallCommand> {
        InstallCommand::new(words.iter().map(|w| (*w).to_owned()).collect()).ok()
    }

    #[test]
    fn a_command_is_told_from_a_name() {
        for (json, known, words) in [
            (r#"["uv"]"#, &[Installer::Uv][..], &[][..]),
            (r#""npm""#, &[Installer::Npm], &[]),
            (r#"[]"#, &[], &[]),
            (r#""pdm sync --prod""#, &[], &["pdm", "sync", "--prod"]),
            (r#"["pdm  sync"]"#, &[], &["pdm", "sync"]),
            (
                r#"["cargo", "./install.sh"]"#,
                &[Installer::Cargo],
                &["./install.sh"],
            ),
            (r#"[["make"], "uv"]"#, &[Installer::Uv], &["make"]),
            (r#"[["sh", "-c", "a  b"]]"#, &[], &["sh", "-c", "a  b"]),
            // A known tool, called otherwise than Semel calls it, is a command.
            (
                r#""uv pip sync requirements.txt""#,
                &[],
                &["uv", "pip", "sync", "requirements.txt"],
            ),
        ] {
            let read = read(json).unwrap();
            assert_eq!(read.known, known, "{json}");
            assert_eq!(read.command, command(words), "{json}");
            // What is written says the same.
            let again: Installs = serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
            assert_eq!(again, read, "{json}");
        }
    }

    #[test]
    fn a_misspelt_name_is_never_run() {
        for typo in ["uvx", "pyp", "pdm", "NPM", "npm\\n"] {
            let why = read(&format!("[\"{typo}\"]"));
            match typo {
                // White space around a name changes nothing.
                "npm\\n" => assert!(why.is_ok()),
                _ => assert!(
                    why.unwrap_err().contains("no installer: uv, pip, poetry, npm"),
                    "{typo}"
                ),
            }
        }
        for bad in [
            r#""""#,
            r#"[""]"#,
            r#"[[]]"#,
            r#"[[""]]"#,
            r#"["a b", "c d"]"#,
            r#"[["a", 1]]"#,
            "3",
            r#"[["a\u0000"]]"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_command_is_shown_word_by_word() {
        let shown = command(&["sh", "-c", "a  b", "", "it's"]).unwrap().to_string();
        assert_eq!(shown, r#"sh -c "a  b" "" it's"#);
        assert_eq!(command(&["bin/x", "y"]).unwrap().program_name(), "x");
    }
}
