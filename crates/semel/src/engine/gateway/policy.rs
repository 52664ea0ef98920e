//! Where the policy is asked: by name before anything is looked at, and again of the very places that the effects have,
//! right before the intent.
//!
//! What a rule means is decided by `core`; which places a call has is found out here.

use super::Gateway;
use super::approval::Asking;
use super::arguments::Args;
use super::call::Asked;
use super::mutation::Mutation;
use super::prepare::Ready;
use super::tool::{Kind, Tool};
use crate::config::Config;
use crate::engine::host;
use crate::limits;
use semel_core::approval::{Commanded, Plan};
use semel_core::call::Intent;
use semel_core::effect::Effect;
use semel_core::patch::Operation;
use semel_core::policy::{
    Beneath, Caller, Ground, Group, HardLinks, Judged, Policy, Touched, Verdict, touched, tree,
};
use semel_core::upstream::server_of;
use semel_core::volume::Volume;
use semel_core::{Code, Refusal, RelPath, Sha256};
use semel_host::files::{self, FileKind, Prepared};
use semel_host::plain;
use semel_host::root::{GitInternals, LastLink, Root};
use std::path::Path;

/// Is the policy that this life of the daemon judges by. Another one is in force after a restart.
#[derive(Debug)]
pub(crate) struct InForce {
    /// What it says.
    pub(crate) policy: Policy,
    /// Which text said so; recorded with this life, and with every question to a person.
    pub(crate) sha256: Sha256,
}

/// Loads the policy that the operator's configuration names.
///
/// # Errors
/// `bad_config` where it cannot be read, is malformed, is not named by an absolute path, may be written by anybody, or
/// lies in the state root, where an agent may have a hand in it.
pub(crate) fn load(config: &Config) -> Result<Option<InForce>, Refusal> {
    let Some(place) = &config.policy else {
        return Ok(None);
    };
    let bytes = read(place, &config.state).map_err(|refusal| Refusal {
        code: Code::BadConfig,
        why: format!("the tool policy: {}", refusal.why),
        ..refusal
    })?;
    let shown = place.display().to_string();
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| Refusal::new(Code::BadConfig, "the tool policy is not UTF-8").name(&shown))?;
    let tools: Vec<&str> = Tool::ALL
        .iter()
        .filter(|tool| group(**tool).is_some())
        .map(|tool| tool.name())
        .collect();
    Ok(Some(InForce {
        policy: Policy::parse_where(text, &|name| {
            // What another server lists is not known yet.
            let theirs = server_of(name).is_some_and(|server| config.upstreams.contains_key(&server));
            theirs || tools.contains(&name)
        })
        .map_err(|refusal| refusal.name(shown))?,
        sha256: Sha256::of(&bytes),
    }))
}

fn read(place: &Path, state: &Path) -> Result<Vec<u8>, Refusal> {
    let wrong = |why: String| Refusal::new(Code::BadConfig, why).name(place.display().to_string());
    if !place.is_absolute() {
        return Err(wrong("it is named by an absolute path".to_owned()));
    }
    let real = place.canonicalize().map_err(|e| wrong(e.to_string()))?;
    let root = state.canonicalize().unwrap_or_else(|_| state.to_owned());
    if real.starts_with(&root) || place.starts_with(state) {
        return Err(wrong(
            "it does not lie in the state root, where an agent works".to_owned(),
        ));
    }
    plain::read_trusted(&real, limits::POLICY).map_err(host)
}

/// Says what kind a tool is for a policy; `None` for one that touches no path.
const fn group(tool: Tool) -> Option<Group> {
    match tool.kind() {
        // What a person undoes changes files as any call does: a rule holds for it, too.
        Kind::Mutation | Kind::Person => Some(Group::Mutate),
        Kind::Read => Some(Group::Read),
        Kind::Journal => None,
    }
}

fn caller(tool: Tool, lease: &Volume) -> Option<Caller<'static>> {
    Some(Caller {
        tool: tool.name(),
        group: group(tool)?,
        role: lease.role,
    })
}

impl Gateway {
    /// Gives the policy with the caller that it is asked about; `None` where nothing is to be asked.
    fn judge(&self, tool: Tool, lease: &Volume) -> Option<(&InForce, Caller<'static>)> {
        Some((self.policy.as_ref()?, caller(tool, lease)?))
    }

    /// Says whether the effects of a call may be prepared on what belongs to git: only where a rule names it.
    pub(super) fn git_internals(&self, asked: &Asked) -> GitInternals {
        match self.judge(asked.tool, &asked.lease) {
            Some((in_force, caller)) if in_force.policy.opens_git(caller) => GitInternals::Allow,
            Some(_) | None => GitInternals::Refuse,
        }
    }

    /// Refuses a call whose paths are forbidden by name, before anything is told of what is there.
    ///
    /// # Errors
    /// `denied`; `path_escapes_root`, reason `git_internals`.
    pub(super) fn forbidden(&self, mutation: &Mutation<'_>) -> Result<(), Refusal> {
        let asked = mutation.asked;
        let Some((in_force, caller)) = self.judge(asked.tool, &asked.lease) else {
            return Ok(());
        };
        let judged = mutation.by_name(&in_force.policy, caller);
        match judged.verdict {
            Verdict::Allow | Verdict::Ask(_) => Ok(()),
            Verdict::Deny(ground) => Err(denied(ground, &judged.path)),
            Verdict::Git => Err(belongs_to_git(&judged.path)),
        }
    }

    /// Keeps from a caller what is wrong with a call on paths that a person decides about, until one was asked: what a
    /// file holds, or that it is there, could be told by such refusals alone.
    pub(super) fn veiled(&self, mutation: &Mutation<'_>, refusal: Refusal) -> Refusal {
        let asked = mutation.asked;
        let tells = matches!(
            refusal.code,
            Code::NotFound
                | Code::PreconditionFailed
                | Code::PathEscapesRoot
                | Code::BadInput
                | Code::TooLarge
        );
        let Some((in_force, caller)) = self.judge(asked.tool, &asked.lease).filter(|_| tells) else {
            return refusal;
        };
        let Verdict::Ask(ground) = mutation.by_name(&in_force.policy, caller).verdict else {
            return refusal;
        };
        let asking = Asking {
            ground,
            policy_sha256: in_force.sha256,
            plan: Plan {
                command: mutation.commanded(),
                refused: Some(refusal.code),
                ..Plan::default()
            },
        };
        match self.approved(asked, Some(&mutation.key), &mutation.request, &asking) {
            Ok(()) => refusal,
            Err(waits) => waits,
        }
    }

    /// Decides whether prepared effects may be carried out: on the places that they have, right before the intent.
    ///
    /// # Errors
    /// `denied`, `path_escapes_root`; those of an approval.
    pub(super) fn permitted(
        &self,
        mutation: &Mutation<'_>,
        ready: &Ready,
        intent: &Intent,
    ) -> Result<(), Refusal> {
        let asked = mutation.asked;
        let Some((in_force, caller)) = self.judge(asked.tool, &asked.lease) else {
            return Ok(());
        };
        let policy = &in_force.policy;
        if policy.hard_links == HardLinks::Refuse {
            ready.effects.iter().try_for_each(breaks_no_link)?;
        }
        let mut beneath = Vec::with_capacity(intent.effects.len());
        for prepared in &ready.effects {
            beneath.push(look(policy, caller, prepared, mutation)?);
        }
        if ready.command.is_some() {
            beneath.push(Beneath::Unseen);
        }
        if beneath.len() != intent.effects.len() {
            let why = "an effect was not looked at by the policy";
            return Err(Refusal::new(Code::Internal, why));
        }
        let effects = || intent.effects.iter().zip(&beneath);
        let places = effects().flat_map(|(effect, beneath)| touched(effect, beneath));
        let judged = policy.judge(caller, places);
        match judged.verdict {
            Verdict::Allow => Ok(()),
            Verdict::Deny(ground) => Err(denied(ground, &judged.path)),
            Verdict::Git => Err(belongs_to_git(&judged.path)),
            Verdict::Ask(ground) => {
                let trees = effects().filter_map(|(effect, beneath)| tree(effect, beneath));
                let plan = Plan {
                    command: mutation.commanded(),
                    changed: intent.done().changed,
                    trees: trees.collect(),
                    ..Plan::default()
                };
                let asking = Asking {
                    ground,
                    policy_sha256: in_force.sha256,
                    plan,
                };
                self.approved(asked, Some(&mutation.key), &mutation.request, &asking)
            }
        }
    }

    /// Decides whether a path may be read; its links were followed.
    ///
    /// # Errors
    /// `denied`; those of an approval.
    pub(super) fn may_read(&self, asked: &Asked, path: &RelPath) -> Result<(), Refusal> {
        let Some((in_force, caller)) = self.judge(asked.tool, &asked.lease) else {
            return Ok(());
        };
        let judged = in_force.policy.judge(caller, [Touched::Path(path)]);
        match judged.verdict {
            Verdict::Allow => Ok(()),
            Verdict::Deny(ground) => Err(denied(ground, &judged.path)),
            Verdict::Git => Err(belongs_to_git(&judged.path)),
            Verdict::Ask(ground) => {
                let plan = Plan {
                    reads: vec![path.clone()],
                    ..Plan::default()
                };
                let request = asked.understood.request(asked.tool)?;
                let asking = Asking {
                    ground,
                    policy_sha256: in_force.sha256,
                    plan,
                };
                self.approved(asked, None, &request, &asking)
            }
        }
    }
}

impl Gateway {
    /// Says whether a search or a list may show an entry: only what the policy allows. What a person decides about is
    /// asked for by its own path.
    pub(super) fn shows(&self, asked: &Asked, path: &RelPath) -> bool {
        self.judge(asked.tool, &asked.lease)
            .is_none_or(|(in_force, caller)| in_force.policy.at(caller, path) == Verdict::Allow)
    }
}

impl Mutation<'_> {
    /// Lists the paths that the call names, each as it leads; what is missing is taken as it is spelt.
    fn named(&self) -> Vec<RelPath> {
        use LastLink::{Follow, Keep};
        let path = &self.request.path;
        let mut all = Vec::new();
        let mut add = |path: &RelPath, last| all.push(resolved(self.disk.tree(), path, last));
        match &self.asked.understood.args {
            Args::Write { .. } | Args::Edit { .. } | Args::SetMode { .. } | Args::CreateDirectory => {
                add(path, Follow);
            }
            Args::Delete { .. } | Args::DeleteDirectory { .. } => add(path, Keep),
            Args::Move { destination, .. } => {
                add(path, Keep);
                if let Ok(destination) = destination {
                    add(destination, Keep);
                }
            }
            Args::Patch { patch, .. } => {
                for operation in patch.operations() {
                    match operation {
                        Operation::Add { path, .. } => add(path, Follow),
                        Operation::Delete { path, .. } => add(path, Keep),
                        Operation::Update {
                            path, move_to: None, ..
                        } => add(path, Follow),
                        Operation::Update {
                            path,
                            move_to: Some(to),
                            ..
                        } => {
                            add(path, Keep);
                            add(to, Keep);
                        }
                    }
                }
            }
            // The places that they were resolved to, not spellings that may lead elsewhere by now.
            Args::Undo { undone } => {
                for effect in &undone.effects {
                    add(effect.at(), Keep);
                    if let Effect::Move { to, .. } = effect {
                        add(to, Keep);
                    }
                }
            }
            // What it names is where it runs; what it touches is not known beforehand.
            Args::Run(_) => {}
            Args::Look(_) | Args::Receipt { .. } => {}
        }
        all
    }

    /// Judges the call by what it names.
    fn by_name<'p>(&self, policy: &'p Policy, caller: Caller<'_>) -> Judged<'p> {
        // What is in it is seen right before the intent; by its name alone it may be forbidden before.
        const DIRECTORY: &Beneath = &Beneath::Seen(Vec::new());
        let named = self.named();
        let whole = self.is_about_a_directory();
        let places = named.iter().map(|at| {
            if whole {
                Touched::Directory {
                    at,
                    beneath: DIRECTORY,
                }
            } else {
                Touched::Path(at)
            }
        });
        let anything = self.asked.runs_a_command().then_some(Touched::Everything);
        policy.judge(caller, places.chain(anything))
    }

    /// Says whether what the call names goes as a directory, with all that is in it.
    fn is_about_a_directory(&self) -> bool {
        match &self.asked.understood.args {
            Args::DeleteDirectory { .. } => true,
            Args::Move { .. } => {
                let kind = files::kind_at(&self.disk, &self.request.path, self.git);
                matches!(kind, Ok(Some(FileKind::Directory)))
            }
            _ => false,
        }
    }
}

impl Mutation<'_> {
    /// Shows the command that the call would run.
    fn commanded(&self) -> Option<Commanded> {
        match &self.asked.understood.args {
            Args::Run(run) => Some(run.shown()),
            _ => None,
        }
    }
}

/// Follows the links of a path as far as it leads; what is missing, or leads nowhere, is taken as it is spelt.
pub(super) fn resolved(root: &Root, path: &RelPath, last: LastLink) -> RelPath {
    let (mut at, mut last, mut rest) = (path.clone(), last, Vec::new());
    while let Some((parent, name)) = at.split_last() {
        if let Ok(place) = root.place(&at, last) {
            let joined = rest
                .iter()
                .rev()
                .try_fold(place.resolved, |path: RelPath, name: &Vec<u8>| path.join(name));
            return joined.unwrap_or_else(|_| path.clone());
        }
        rest.push(name.to_vec());
        (at, last) = (parent, LastLink::Follow);
    }
    path.clone()
}

/// Looks at what goes with a directory, where a rule could be about any of it.
fn look(
    policy: &Policy,
    caller: Caller<'_>,
    prepared: &Prepared,
    mutation: &Mutation<'_>,
) -> Result<Beneath, Refusal> {
    let effect = &prepared.effect;
    let to = match effect {
        Effect::Move { to, .. } => Some(to),
        Effect::Install { .. }
        | Effect::Remove { .. }
        | Effect::RemoveEmpty { .. }
        | Effect::Restore { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => None,
    };
    let matters = std::iter::once(effect.at())
        .chain(to)
        .any(|at| policy.looks_inside(caller, at));
    if !matters {
        return Ok(Beneath::Nothing);
    }
    prepared
        .beneath(&mutation.disk, limits::POLICY_LOOKS)
        .map_err(host)
}

fn breaks_no_link(prepared: &Prepared) -> Result<(), Refusal> {
    match &prepared.effect {
        Effect::Install {
            at,
            before: Some(before),
            ..
        } if before.other_names.is_some() => {
            let why = "the file has other names, which would keep the old content; the policy refuses that";
            Err(Refusal::new(Code::Denied, why)
                .reason("hard_link")
                .name(at.to_string()))
        }
        Effect::Install { .. }
        | Effect::Remove { .. }
        | Effect::RemoveEmpty { .. }
        | Effect::Move { .. }
        | Effect::Restore { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => Ok(()),
    }
}

pub(super) fn denied(ground: Ground<'_>, path: &str) -> Refusal {
    let why = match &ground.rule.reason {
        Some(reason) => format!("rule {} of the policy denies it ({reason})", ground.number),
        None => format!("rule {} of the policy denies it", ground.number),
    };
    Refusal::new(Code::Denied, why).reason("policy").name(path)
}

fn belongs_to_git(path: &str) -> Refusal {
    Refusal::new(
        Code::PathEscapesRoot,
        "the path belongs to git, and no rule of the policy opens it by name",
    )
    .reason("git_internals")
    .name(path)
}
