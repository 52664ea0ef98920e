//! A filesystem of its own on a loop device, whose power can be cut.
//!
//! The cut is the kernel's own: from one moment on nothing more of the filesystem reaches its device, and what only the
//! page cache knows is gone with the unmounting. What the device was told stays, in the order in which it was told.

use crate::harness::wait_until;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Which filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// With a journal, data before metadata, and no commit but one that is asked for: what is left out shows.
    const fn options(self) -> &'static str {
        match self {
            Self::Ext4 => "data=ordered,commit=300",
            Self::Xfs => "defaults",
        }
    }
}

pub(super) struct Disk {
    kind: Kind,
    device: String,
    at: PathBuf,
    mounted: bool,
}

fn ran(program: &str, args: &[&str]) -> Result<String, String> {
    let out = Command::new(program)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .args(args)
        .output()
        .map_err(|e| format!("{program}: {e}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
        false => Err(format!(
            "{program} {args:?}: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        )),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test is text")
}

impl Disk {
    /// Makes an image and mounts it.
    ///
    /// # Errors
    /// Why this machine cannot.
    pub(super) fn new(kind: Kind, image: &Path, at: &Path) -> Result<Self, String> {
        let file = std::fs::File::create(image).map_err(|e| e.to_string())?;
        file.set_len(512 << 20).map_err(|e| e.to_string())?;
        let image = text(image);
        match kind {
            Kind::Ext4 => ran("mkfs.ext4", &["-q", "-F", "-N", "65536", image])?,
            Kind::Xfs => ran("mkfs.xfs", &["-q", "-f", image])?,
        };
        let mut disk = Self {
            kind,
            device: ran("losetup", &["--find", "--show", image])?,
            at: at.to_owned(),
            mounted: false,
        };
        disk.mount()?;
        Ok(disk)
    }

    pub(super) fn mount(&mut self) -> Result<(), String> {
        let (kind, at) = (self.kind.name(), text(&self.at));
        ran(
            "mount",
            &["-t", kind, "-o", self.kind.options(), &self.device, at],
        )?;
        self.mounted = true;
        Ok(())
    }

    /// Makes everything durable that is on it.
    pub(super) fn sync(&self) {
        let root = std::fs::File::open(&self.at).unwrap();
        // SAFETY: a plain system call on a descriptor.
        #[expect(unsafe_code, reason = "std has no syncfs")]
        let answer = unsafe { libc::syncfs(root.as_raw_fd()) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    }

    /// Cuts the power: what was not synced by now will never be.
    pub(super) fn cut(&self) -> Result<(), String> {
        /// `FS_IOC_SHUTDOWN`, which is `XFS_IOC_GOINGDOWN`: `_IOR('X', 125, u32)`.
        const SHUTDOWN: u64 = 0x8004_587d;
        /// Without writing the log first.
        const NOLOGFLUSH: u32 = 2;
        let root = std::fs::File::open(&self.at).map_err(|e| e.to_string())?;
        let how = NOLOGFLUSH;
        // SAFETY: the request reads a 32-bit word, which outlives the call.
        #[expect(unsafe_code, reason = "std has no ioctl")]
        let answer = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN as _, &raw const how) };
        match answer {
            0 => Ok(()),
            _ => Err(format!("FS_IOC_SHUTDOWN: {}", std::io::Error::last_os_error())),
        }
    }

    /// Unmounts it, and waits until the kernel has forgotten it: whoever mounts it again reads the device.
    pub(super) fn unmount(&mut self) {
        let within = Duration::from_secs(30);
        let at = text(&self.at).to_owned();
        let mut told = String::new();
        let gone = wait_until(within, || match ran("umount", &[&at]) {
            Ok(_) => true,
            Err(why) => {
                told = why;
                false
            }
        });
        assert!(gone, "{told}");
        self.mounted = false;
        let known = Path::new("/sys/fs")
            .join(self.kind.name())
            .join(self.device.trim_start_matches("/dev/"));
        assert!(
            wait_until(within, || !known.exists()),
            "{} stays",
            known.display()
        );
    }

    /// Does what a machine does before it mounts at its start.
    pub(super) fn check(&self) {
        if self.kind == Kind::Ext4 {
            // It replays the journal. The device may be held for a moment yet by the filesystem that went.
            let mut checked = Ok(String::new());
            wait_until(Duration::from_secs(10), || {
                checked = ran("e2fsck", &["-p", &self.device]);
                checked.is_ok()
            });
            assert!(checked.is_ok(), "{checked:?}");
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            // Also where a test failed while a daemon still has files open.
            drop(ran("umount", &["--lazy", text(&self.at)]));
        }
        drop(ran("losetup", &["--detach", &self.device]));
    }
}
