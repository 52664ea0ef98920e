//! A filesystem of its own on a loop device, whose power can be cut.
//!
//! The cut is the kernel's own: from one moment on nothing more of the filesystem reaches its device, and what only the
//! page cache knows is gone with the unmounting. What the device was told stays, in the order in which it was told.
//! btrfs has no such cut. Its device is a file on a filesystem that can clone one in a moment: the clone is what the
//! machine finds when it starts.

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
    Btrfs,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// With a journal, data before metadata, and no commit but one that is asked for: what is left out shows.
    const fn options(self) -> &'static str {
        match self {
            Self::Ext4 => "data=ordered,commit=300",
            Self::Xfs => "defaults",
            Self::Btrfs => "commit=300",
        }
    }
}

pub(super) struct Disk {
    kind: Kind,
    device: String,
    image: PathBuf,
    at: PathBuf,
    /// Where the kernel shows it while it knows it.
    known: PathBuf,
    mounted: bool,
    /// What the image lies on, where that has to be able to clone it.
    below: Option<Box<Disk>>,
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

/// Makes one file what another is in this moment.
fn clones(from: &Path, to: &Path) -> Result<(), String> {
    /// `_IOW(0x94, 9, int)`.
    const FICLONE: u64 = 0x4004_9409;
    let from = std::fs::File::open(from).map_err(|e| e.to_string())?;
    let to = std::fs::OpenOptions::new()
        .write(true)
        .open(to)
        .map_err(|e| e.to_string())?;
    // SAFETY: a plain system call on descriptors.
    #[expect(unsafe_code, reason = "std has no ioctl")]
    let answer = unsafe { libc::ioctl(to.as_raw_fd(), FICLONE as _, from.as_raw_fd()) };
    match answer {
        0 => Ok(()),
        _ => Err(format!("FICLONE: {}", std::io::Error::last_os_error())),
    }
}

impl Disk {
    /// Makes an image and mounts it.
    ///
    /// # Errors
    /// Why this machine cannot.
    pub(super) fn new(kind: Kind, image: &Path, at: &Path) -> Result<Self, String> {
        let mut image = image.to_owned();
        let mut below = None;
        if kind == Kind::Btrfs {
            let place = image.with_extension("below");
            std::fs::create_dir(&place).map_err(|e| e.to_string())?;
            below = Some(Box::new(Self::new(Kind::Xfs, &image, &place)?));
            image = place.join("image");
        }
        let file = std::fs::File::create(&image).map_err(|e| e.to_string())?;
        file.set_len(512 << 20).map_err(|e| e.to_string())?;
        let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(|e| e.to_string())?;
        let (text, id) = (text(&image), id.trim());
        match kind {
            Kind::Ext4 => ran("mkfs.ext4", &["-q", "-F", "-N", "65536", text])?,
            Kind::Xfs => ran("mkfs.xfs", &["-q", "-f", text])?,
            Kind::Btrfs => ran("mkfs.btrfs", &["-q", "-f", "-U", id, text])?,
        };
        let device = ran("losetup", &["--find", "--show", text])?;
        let known = match kind {
            Kind::Ext4 | Kind::Xfs => device.trim_start_matches("/dev/"),
            Kind::Btrfs => id,
        };
        let mut disk = Self {
            kind,
            known: Path::new("/sys/fs").join(kind.name()).join(known),
            device,
            image,
            at: at.to_owned(),
            mounted: false,
            below,
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
        if self.kind == Kind::Btrfs {
            return self.cloned();
        }
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

    /// Keeps the device as it is in this moment.
    fn cloned(&self) -> Result<(), String> {
        let clone = self.image.with_extension("clone");
        std::fs::File::create(&clone).map_err(|e| e.to_string())?;
        clones(&self.image, &clone)
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
        let known = &self.known;
        assert!(
            wait_until(within, || !known.exists()),
            "{} stays",
            known.display()
        );
        if self.kind == Kind::Btrfs {
            // The device keeps its number, from which btrfs makes the identity that it shows.
            clones(&self.image.with_extension("clone"), &self.image).unwrap();
        }
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
        // Unmounted only now, since the device lies on it.
        self.below = None;
    }
}
