//! What a mutating call is to do, from its arguments to effects that are ready; nothing that an agent can name changes.

use super::Gateway;
use super::arguments::{Args, Expected, Flag};
use super::command::Command;
use super::mutation::Mutation;
use semel_core::call::Facts;
use semel_core::effect::{Effect, Slot};
use semel_core::ids::ExecutionId;
use semel_core::patch::{self, Edit, Mode, Operation};
use semel_core::{Code, Refusal, RelPath, Sha256};
use semel_host::Error;
use semel_host::files::{self, FileKind, Move, Prepared, Removable, Remove, SetMode, Terms, Write};
use semel_host::root::Place;
use std::collections::BTreeMap;

/// Is what was staged, or looked at, before the intent: the effects in their order.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) effects: Vec<Prepared>,
    pub(super) facts: Facts,
    /// The command to be run; then there is nothing else.
    pub(super) command: Option<Command>,
}

impl Ready {
    /// Gives what the intent records.
    pub(super) fn recorded(&self) -> Vec<Effect> {
        self.effects
            .iter()
            .map(|prepared| prepared.effect.clone())
            .chain(self.command.as_ref().map(Command::effect))
            .collect()
    }
}

/// Prepares the effects of one execution, each under the next slot.
pub(super) struct Bench<'a> {
    pub(super) mutation: &'a Mutation<'a>,
    gateway: &'a Gateway,
    execution: &'a ExecutionId,
    pub(super) ready: Ready,
}

impl Mutation<'_> {
    /// Stages and looks at all that the call is to do.
    ///
    /// # Errors
    /// Those of the effects; what was staged before is discarded.
    pub(super) fn prepare(&self, gateway: &Gateway, execution: &ExecutionId) -> Result<Ready, Error> {
        let mut bench = Bench {
            mutation: self,
            gateway,
            execution,
            ready: Ready::default(),
        };
        match bench.call() {
            Ok(()) => Ok(bench.ready),
            Err(error) => {
                self.discard(execution, &bench.ready.recorded());
                Err(error)
            }
        }
    }
}

impl Bench<'_> {
    fn call(&mut self) -> Result<(), Error> {
        let path = &self.mutation.request.path;
        match &self.mutation.asked.understood.args {
            Args::Write { content, expected } => self.write(path, content, *expected, None),
            Args::Edit { edits, expected } => self.edit(path, edits, *expected),
            Args::Patch { patch, expected } => self.patch(patch.operations(), expected),
            Args::Delete { expected } => self.remove(path, expectation(*expected), Removable::Leaf),
            Args::DeleteDirectory { recursive } => match Mutation::removable(*recursive) {
                Some(takes) => self.remove(path, files::Expected::Any, takes),
                None => self.add(|disk, terms, _| files::prepare_remove_empty(disk, path, terms)),
            },
            Args::Move {
                destination,
                overwrite,
                expected,
            } => {
                let to = destination.clone()?;
                self.relocate(path, &to, *overwrite, expectation(*expected))
            }
            Args::CreateDirectory => self.directories(std::slice::from_ref(path)),
            Args::SetMode { mode, expected } => {
                let wanted = SetMode {
                    path,
                    mode: *mode,
                    expected: expectation(*expected),
                };
                self.add(|disk, terms, _| files::prepare_set_mode(disk, wanted, terms))
            }
            Args::Undo { undone } => self.undo(undone),
            Args::Run(run) => {
                let command = self.gateway.command(self.mutation, self.execution, run)?;
                self.ready.command = Some(command);
                Ok(())
            }
            Args::Look(_) | Args::Receipt { .. } => {
                Err(Refusal::new(Code::Internal, "a call without an effect reached its execution").into())
            }
        }
    }

    /// Prepares one more effect under the next slot.
    pub(super) fn add(
        &mut self,
        prepare: impl FnOnce(&semel_host::volume::Volume, Terms<'_>, &Gateway) -> Result<Prepared, Error>,
    ) -> Result<(), Error> {
        let slot = Slot::of(self.execution, self.ready.effects.len());
        let asked = self.mutation.asked;
        let prepared = prepare(
            &self.mutation.disk,
            self.terms(&slot, &|| asked.gone()),
            self.gateway,
        )?;
        self.ready.effects.push(prepared);
        Ok(())
    }

    fn terms<'s>(&self, slot: &'s Slot, gone: &'s dyn Fn() -> bool) -> Terms<'s> {
        Terms {
            slot,
            durability: self.mutation.asked.lease.durability,
            git: self.mutation.git,
            gone,
        }
    }

    fn write(
        &mut self,
        path: &RelPath,
        bytes: &[u8],
        expected: Expected,
        mode: Option<u32>,
    ) -> Result<(), Error> {
        self.write_like(path, bytes, expected, mode, None)
    }

    fn write_like(
        &mut self,
        path: &RelPath,
        bytes: &[u8],
        expected: Expected,
        mode: Option<u32>,
        like: Option<&RelPath>,
    ) -> Result<(), Error> {
        let place = self.place_in_new(path)?;
        self.add(|disk, terms, gateway| {
            let write = Write {
                path,
                bytes,
                expected: expectation(expected),
                mode,
                like,
                place,
            };
            files::prepare_write(disk, write, terms, &gateway.hooks)
        })
    }

    /// Finds the place of a path in a directory that this very call makes.
    fn place_in_new(&self, path: &RelPath) -> Result<Option<Place>, Error> {
        for prepared in &self.ready.effects {
            if let Some(place) = prepared.place_in(path)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    pub(super) fn remove(
        &mut self,
        path: &RelPath,
        expected: files::Expected,
        takes: Removable,
    ) -> Result<(), Error> {
        let wanted = Remove {
            path,
            expected,
            takes,
        };
        self.add(|disk, terms, _| files::prepare_remove(disk, wanted, terms))
    }

    /// Makes directories, where they are missing.
    pub(super) fn directories(&mut self, wanted: &[RelPath]) -> Result<(), Error> {
        let missing = files::missing_directories(&self.mutation.disk, wanted, self.mutation.git)?;
        for one in missing {
            self.add(|disk, terms, gateway| files::prepare_directory(disk, one, terms, &gateway.hooks))?;
        }
        Ok(())
    }

    fn relocate(
        &mut self,
        from: &RelPath,
        to: &RelPath,
        overwrite: Flag,
        expected: files::Expected,
    ) -> Result<(), Error> {
        let place = self.place_in_new(to)?;
        let wanted = |place| Move {
            from,
            to,
            expected,
            place,
        };
        // Looked at first: what is wrong with the source is told before what is wrong with the destination.
        let slot = Slot::of(self.execution, self.ready.effects.len());
        let (is_new, asked) = (place.is_some(), self.mutation.asked);
        let looked = files::prepare_move(
            &self.mutation.disk,
            wanted(place),
            self.terms(&slot, &|| asked.gone()),
        )?;
        let there = if is_new {
            None
        } else {
            files::kind_at(&self.mutation.disk, to, self.mutation.git)?
        };
        match (there, overwrite) {
            (None, _) => {
                self.ready.effects.push(looked);
                Ok(())
            }
            (Some(FileKind::File | FileKind::Symlink), Flag::Set) => {
                self.remove(to, files::Expected::Any, Removable::Leaf)?;
                self.add(|disk, terms, _| files::prepare_move(disk, wanted(None), terms))
            }
            (Some(FileKind::Directory), _) => Err(taken(
                to,
                "is_directory",
                "there is a directory at the destination",
            )),
            (Some(_), _) => Err(taken(to, "exists", "there is something at the destination")),
        }
    }

    fn edit(&mut self, path: &RelPath, edits: &[Edit], expected: Expected) -> Result<(), Error> {
        let before = self.read(path, expected)?;
        let edited = patch::edit(before.as_deref(), edits)?;
        let replaced: usize = edited.replaced.iter().sum();
        self.ready.facts.replacements = Some(replaced as u64);
        // What was read is what has to come out: an outside save in between is edited anew.
        let held = match &before {
            Some(bytes) => Expected::Sha256(Sha256::of(bytes)),
            None => Expected::Absent,
        };
        self.write(path, &edited.content, held, None)
    }

    /// Reads a file that is to be changed; `None` where there is none.
    fn read(&self, path: &RelPath, expected: Expected) -> Result<Option<Vec<u8>>, Error> {
        let cap = patch::LONGEST_FILE as u64;
        let content = match files::read_file(self.mutation.disk.tree(), path, cap) {
            Ok(content) => Some(content),
            Err(Error::Refused(refusal)) if refusal.code == Code::NotFound => None,
            Err(error) => return Err(error),
        };
        match (&content, expected) {
            (None, Expected::Sha256(_)) => {
                let why = "there is no file, but a content was expected";
                Err(taken(path, "absent", why))
            }
            (Some(_), Expected::Absent) => {
                Err(taken(path, "exists", "there is a file, but none was expected"))
            }
            (Some(content), Expected::Sha256(wanted)) if content.sha256 != wanted => {
                let why = format!(
                    "the content's sha256 is {}, expected was {wanted}",
                    content.sha256
                );
                Err(taken(path, "sha256_mismatch", &why))
            }
            _ => Ok(content.map(|content| content.bytes)),
        }
    }

    fn patch(
        &mut self,
        operations: &[Operation],
        expected: &BTreeMap<RelPath, Expected>,
    ) -> Result<(), Error> {
        let wanted = |path: &RelPath| expected.get(path).copied().unwrap_or(Expected::Anything);
        self.directories(&parents(operations))?;
        for operation in operations {
            match operation {
                Operation::Add { path, content, mode } => {
                    let absent = must_be_absent(path, wanted(path))?;
                    let mode = match mode {
                        Mode::Regular => 0o644,
                        Mode::Executable => 0o755,
                    };
                    self.write(path, content, absent, Some(mode))?;
                }
                Operation::Delete { path, content } => {
                    let quoted = content.as_ref().map(|bytes| Sha256::of(bytes));
                    let expected = both(path, wanted(path), quoted)?;
                    self.remove(path, expectation(expected), Removable::Leaf)?;
                }
                Operation::Update {
                    path,
                    move_to: Some(to),
                    hunks,
                    mode: None,
                } if hunks.is_empty() => {
                    must_be_absent(to, wanted(to))?;
                    self.relocate(path, to, Flag::Unset, expectation(wanted(path)))?;
                }
                Operation::Update {
                    path,
                    move_to,
                    hunks,
                    mode,
                } => {
                    let (before, after) = self.patched(path, hunks, wanted(path))?;
                    let mode = self.mode_after(path, *mode)?;
                    match move_to {
                        None => self.write(path, &after, Expected::Sha256(before), mode)?,
                        Some(to) => {
                            let absent = must_be_absent(to, wanted(to))?;
                            self.write_like(to, &after, absent, mode, Some(path))?;
                            self.remove(path, files::Expected::Sha256(before), Removable::Leaf)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies the hunks of one file to what it holds; gives the digest of that, and the new content.
    fn patched(
        &mut self,
        path: &RelPath,
        hunks: &[patch::Hunk],
        wanted: Expected,
    ) -> Result<(Sha256, Vec<u8>), Error> {
        let Some(before) = self.read(path, wanted)? else {
            return Err(Refusal::new(Code::NotFound, "there is no such file")
                .name(path.to_string())
                .into());
        };
        let applied = patch::apply(hunks, &before).map_err(|refusal| in_file(path, refusal))?;
        self.report(path, &applied);
        Ok((Sha256::of(&before), applied.content))
    }

    /// Gives the permissions after a patch that says whether a file is a program; who may read it, it does not say.
    fn mode_after(&self, path: &RelPath, mode: Option<Mode>) -> Result<Option<u32>, Error> {
        let Some(mode) = mode else {
            return Ok(None);
        };
        let now = files::file_info(self.mutation.disk.tree(), path, 0)?.mode & 0o777;
        Ok(Some(match mode {
            Mode::Regular => now & !0o111,
            Mode::Executable => now | (now & 0o444) >> 2,
        }))
    }

    fn report(&mut self, path: &RelPath, applied: &patch::Applied) {
        for placed in applied.inexact() {
            let how = serde_json::to_value(placed.how).unwrap_or_default();
            let how = how.as_str().unwrap_or("otherwise").to_owned();
            let stated = placed
                .stated
                .map_or(String::new(), |line| format!(", stated at {line}"));
            self.ready.facts.notes.push(format!(
                "{path}: hunk {} was applied at line {}{stated} ({how})",
                placed.hunk, placed.line
            ));
        }
    }
}

fn in_file(path: &RelPath, refusal: Refusal) -> Error {
    refusal.name(path.to_string()).into()
}

/// Joins what the caller expects with what the patch quotes.
fn both(path: &RelPath, wanted: Expected, quoted: Option<Sha256>) -> Result<Expected, Error> {
    match (wanted, quoted) {
        (Expected::Absent, _) => Err(taken(
            path,
            "exists",
            "the patch changes the file, but none was expected",
        )),
        (Expected::Anything, None) => Ok(Expected::Anything),
        (Expected::Anything, Some(digest)) | (Expected::Sha256(digest), None) => Ok(Expected::Sha256(digest)),
        (Expected::Sha256(a), Some(b)) if a == b => Ok(Expected::Sha256(a)),
        (Expected::Sha256(_), Some(_)) => {
            let why = "the patch quotes another content than was expected";
            Err(taken(path, "sha256_mismatch", why))
        }
    }
}

/// A new file takes a free name; nothing else can be expected of it.
fn must_be_absent(path: &RelPath, wanted: Expected) -> Result<Expected, Error> {
    match wanted {
        Expected::Anything | Expected::Absent => Ok(Expected::Absent),
        Expected::Sha256(_) => Err(taken(
            path,
            "absent",
            "the patch adds the file, but a content was expected",
        )),
    }
}

/// Lists the directories that the new files of a patch lie in.
fn parents(operations: &[Operation]) -> Vec<RelPath> {
    let new = operations.iter().filter_map(|operation| match operation {
        Operation::Add { path, .. } => Some(path),
        Operation::Update { move_to, .. } => move_to.as_ref(),
        Operation::Delete { .. } => None,
    });
    new.filter_map(|path| path.split_last().map(|(parent, _)| parent))
        .filter(|parent| !parent.is_root())
        .collect()
}

fn taken(path: &RelPath, reason: &str, why: &str) -> Error {
    Refusal::new(Code::PreconditionFailed, why)
        .reason(reason)
        .name(path.to_string())
        .into()
}

pub(super) fn expectation(expected: Expected) -> files::Expected {
    match expected {
        Expected::Anything => files::Expected::Any,
        Expected::Absent => files::Expected::Absent,
        Expected::Sha256(digest) => files::Expected::Sha256(digest),
    }
}
