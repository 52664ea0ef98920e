//! What a sandboxed program sees, as a list of places in the order in which they are mounted.
//!
//! It looks at paths, but mounts nothing.

use super::spec::Walls;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The system's own directories, which every sandboxed program reads. What is not here is not there.
pub(super) const SYSTEM: [&str; 11] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/sys",
];

/// Secrets inside the system's directories that the owner of this process may be able to read.
const SECRETS: [&str; 16] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/krb5.keytab",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssl/private",
    "/etc/docker",
    "/etc/kubernetes",
    "/etc/letsencrypt",
    "/etc/wireguard",
    "/etc/NetworkManager/system-connections",
    "/etc/rancher",
];

/// Files that programs need to reach hosts, and that many systems keep as links to elsewhere.
const NETWORK: [&str; 4] = ["/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs", "/etc/pki"];

/// Where programs write without asking where they may.
pub(super) const SCRATCH: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// What stands there outside, read alone.
    Read,
    /// What stands there outside, writable.
    Write,
    /// A small empty directory that anyone may write, for this sandbox alone.
    Scratch,
    /// An empty directory that nobody writes.
    Nothing,
    /// An empty file.
    Blank,
}

/// The whole view.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// What stands where; a place comes before what lies beneath it.
    pub(super) places: BTreeMap<PathBuf, What>,
    /// Symlinks on the way to those places, as (link, text).
    pub(super) links: Vec<(PathBuf, PathBuf)>,
}

impl Plan {
    /// Makes the plan of a sandbox.
    pub(super) fn of(walls: &Walls) -> io::Result<Self> {
        let mut plan = Self::default();
        for place in SYSTEM.map(Path::new) {
            if place.symlink_metadata().is_ok() {
                plan.show(place, What::Read)?;
            }
        }
        for place in SECRETS.map(Path::new) {
            plan.hide(place)?;
        }
        for place in &walls.hide {
            plan.hide(place.path())?;
        }
        for place in SCRATCH {
            plan.places.insert(place.into(), What::Scratch);
        }
        if !walls.loopback {
            for place in NETWORK.map(Path::new).iter().filter(|p| p.exists()) {
                plan.show(place, What::Read)?;
            }
        }
        for place in walls.read_only() {
            plan.show(place, What::Read)?;
        }
        for place in walls.writable() {
            plan.show(place, What::Write)?;
        }
        plan.prune();
        Ok(plan)
    }

    fn show(&mut self, place: &Path, what: What) -> io::Result<()> {
        let (real, links) = trail(place)?;
        if real == Path::new("/") {
            return Err(io::Error::other("the whole filesystem cannot be shown"));
        }
        self.links.extend(links);
        self.places.insert(real, what);
        Ok(())
    }

    fn hide(&mut self, place: &Path) -> io::Result<()> {
        // What is not there needs no hiding; a link to it is left dangling by hiding what it names.
        let Ok((real, _)) = trail(place) else {
            return Ok(());
        };
        if real == Path::new("/") {
            return Err(io::Error::other("the whole filesystem cannot be hidden"));
        }
        let what = if real.is_dir() { What::Nothing } else { What::Blank };
        self.places.insert(real, what);
        Ok(())
    }

    /// Leaves out what changes nothing: what is hidden where nothing shows, and what shows as its parent does.
    fn prune(&mut self) {
        let all = std::mem::take(&mut self.places);
        for (place, what) in all {
            let above = self.above(&place);
            let idle = match what {
                // Where everyone may write, nobody is to plant what looks like the hidden.
                What::Nothing | What::Blank => matches!(above, None | Some(What::Nothing | What::Blank)),
                What::Read | What::Write => above == Some(what),
                What::Scratch => false,
            };
            // A mount of its own at an idle place would be carried along by its parent, which is mounted whole; where
            // that may be written, such a mount is refused: `mounts`.
            if !idle {
                self.places.insert(place, what);
            }
        }
    }

    /// Says what stands at the nearest place above.
    pub(super) fn above(&self, place: &Path) -> Option<What> {
        place
            .ancestors()
            .skip(1)
            .find_map(|above| self.places.get(above).copied())
    }
}

/// Follows a path to what it names; gives the real path and each symlink that was met.
pub(super) fn trail(path: &Path) -> io::Result<(PathBuf, Vec<(PathBuf, PathBuf)>)> {
    let names = |path: &Path| -> Vec<OsString> {
        path.components()
            .filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir))
            .map(|c| c.as_os_str().to_owned())
            .collect()
    };
    let mut rest: VecDeque<OsString> = names(path).into();
    let mut at = PathBuf::from("/");
    let mut links = Vec::new();
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        if !next.symlink_metadata()?.is_symlink() {
            at = next;
            continue;
        }
        let text = std::fs::read_link(&next)?;
        if links.len() >= 40 {
            return Err(rustix::io::Errno::LOOP.into());
        }
        if text.is_absolute() {
            at = PathBuf::from("/");
        }
        for name in names(&text).into_iter().rev() {
            rest.push_front(name);
        }
        links.push((next, text));
    }
    Ok((at, links))
}
