//! Other filesystems than the machine's own, made in an image or in memory, and gone with the test.

use super::is_root;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mounted filesystem.
pub(crate) struct Mount {
    /// Where it is mounted.
    pub(crate) at: PathBuf,
    _dir: tempfile::TempDir,
    /// What it lies on; unmounted after it.
    _below: Option<Box<Mount>>,
}

/// Lists the mounts beneath a directory, in the order in which they were made.
pub(crate) fn beneath(place: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let at = |line: &str| line.split(' ').nth(4).map(PathBuf::from);
    table
        .lines()
        .filter_map(at)
        .filter(|at| at.starts_with(place))
        .collect()
}

/// A mount, or why it cannot be had here.
pub(crate) type Mounted = Result<Mount, String>;

fn run(program: &str, args: &[&OsStr]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.env(
        "PATH",
        "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
    );
    let done = command.args(args).stdin(Stdio::null()).output();
    match done {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(format!(
            "{program}: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        )),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

impl Mount {
    fn place() -> Result<(tempfile::TempDir, PathBuf), String> {
        if !is_root() {
            return Err("only root mounts".to_owned());
        }
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).unwrap();
        Ok((dir, at))
    }

    fn image(size: u64, make: &str, args: &[&str], mount: &[&str]) -> Mounted {
        let (dir, at) = Self::place()?;
        let image = dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(size).unwrap();
        let args: Vec<&OsStr> = args.iter().map(OsStr::new).chain([image.as_os_str()]).collect();
        run(make, &args)?;
        let (program, options) = mount.split_first().unwrap();
        let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        run(
            program,
            &[&options[..], &[image.as_os_str(), at.as_os_str()]].concat(),
        )?;
        Ok(Self {
            at,
            _dir: dir,
            _below: None,
        })
    }

    /// ext4 with a journal.
    pub(crate) fn ext4() -> Mounted {
        Self::image(
            256 << 20,
            "mkfs.ext4",
            &["-q", "-O", "has_journal"],
            &["mount", "-o", "loop"],
        )
    }

    /// xfs, whose smallest size its maker sets.
    pub(crate) fn xfs() -> Mounted {
        Self::image(320 << 20, "mkfs.xfs", &["-q"], &["mount", "-o", "loop"])
    }

    /// A filesystem whose renames take no flags, but which has hard links.
    pub(crate) fn without_flags() -> Mounted {
        let options = "permissions,streams_interface=none";
        Self::image(
            512 << 20,
            "mkntfs",
            &["-F", "-Q", "-q"],
            &["lowntfs-3g", "-o", options],
        )
    }

    /// tmpfs.
    pub(crate) fn tmpfs() -> Mounted {
        let (dir, at) = Self::place()?;
        let words = ["-t", "tmpfs", "-o", "size=256m", "tmpfs"].map(OsStr::new);
        run("mount", &[&words[..], &[at.as_os_str()]].concat())?;
        Ok(Self {
            at,
            _dir: dir,
            _below: None,
        })
    }

    /// An overlay whose layers lie on another mount.
    pub(crate) fn overlay(below: Self) -> Mounted {
        let (dir, at) = Self::place()?;
        for layer in ["lower", "upper", "work"] {
            std::fs::create_dir(below.at.join(layer)).unwrap();
        }
        let layer = |name: &str| below.at.join(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=off",
            layer("lower"),
            layer("upper"),
            layer("work")
        );
        let words = ["-t", "overlay", "-o", &options, "overlay"].map(OsStr::new);
        run("mount", &[&words[..], &[at.as_os_str()]].concat())?;
        Ok(Self {
            at,
            _dir: dir,
            _below: Some(Box::new(below)),
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // What still has it open is on its way out.
        if run("umount", &[self.at.as_os_str()]).is_err() {
            drop(run("umount", &[OsStr::new("--lazy"), self.at.as_os_str()]));
        }
        assert!(!is_mounted(&self.at), "{} is unmounted", self.at.display());
    }
}

fn is_mounted(at: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4) == at.to_str())
}
