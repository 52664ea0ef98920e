//! Where git's private directory lies when places are full, taken by others, or tidied up; and a worktree that is removed
//! meanwhile.

use super::restore::{no_residue, options};
use super::*;
use crate::git::view::elsewhere;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Says where private directories are, for the thread of a test.
struct Places;

impl Places {
    fn of(lab: &Lab, names: &[&str]) -> Self {
        for name in names {
            std::fs::create_dir_all(lab.path(name)).unwrap();
        }
        elsewhere::set(Some(names.iter().map(|name| lab.path(name)).collect()));
        Self
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        elsewhere::set(None);
    }
}

fn own_name() -> String {
    format!("semel-{}", rustix::process::geteuid().as_raw())
}

fn run(lab: &Lab, tree: &str, witness: &dyn Witness) -> std::result::Result<Outcome, Box<Failed>> {
    restore_watched(&lab.git, &lab.path("wt"), tree, options(0), &cancel(), witness)
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

/// Mounts a filesystem of few pages, and fills it but for some bytes.
fn small(at: &Path, left: usize) -> Option<Mounted> {
    let data = c"size=64k,nr_inodes=16,mode=0777";
    if mount("none", at, "tmpfs", MountFlags::empty(), data).is_err() {
        skipped("nothing can be mounted here");
        return None;
    }
    let mounted = Mounted(at.to_owned());
    let fill = at.join("fill");
    let mut pages = 16 - left;
    while std::fs::write(&fill, vec![0; pages * 4096]).is_err() {
        pages -= 1;
    }
    Some(mounted)
}

#[test]
fn a_place_that_is_full_is_passed_over() {
    let lab = Lab::new(&gits()[0]);
    let (tree, _) = lab.linked();
    let _places = Places::of(&lab, &["full", "free"]);
    // There is room for nothing, for one file, for two, ...
    for left in 0..4 {
        let Some(mounted) = small(&lab.path("full"), left) else {
            return;
        };
        lab.write("wt/f", "changed\n");
        run(&lab, &tree, &Nobody).unwrap();
        drop(mounted);
    }
    let Some(_mounted) = small(&lab.path("full"), 0) else {
        return;
    };
    elsewhere::set(Some(vec![lab.path("full")]));
    let refusal = run(&lab, &tree, &Nobody).unwrap_err().error.into_refusal();
    assert_eq!(refusal.code, Code::IoFailed, "{refusal}");
    assert!(refusal.why.contains("No space left"));
}

#[test]
fn a_name_that_another_user_took_is_passed_over() {
    let lab = Lab::new(&gits()[0]);
    let (tree, _) = lab.linked();
    let _places = Places::of(&lab, &["one", "two"]);
    let nobody = rustix::fs::Uid::from_raw(65_534);
    for base in ["one", "two"] {
        let taken = lab.path(base).join(own_name());
        std::fs::create_dir(&taken).unwrap();
        if rustix::fs::chown(&taken, Some(nobody), None).is_err() {
            return skipped("no directory can be given away here");
        }
    }
    run(&lab, &tree, &Nobody).unwrap();
    let made = lab.path("one").join(format!("{}-1", own_name()));
    assert_eq!(std::fs::read_dir(made).unwrap().count(), 0);
}

/// Tidies up all private directories, as often as a point is reached, a number of times.
struct Tidies<'a> {
    lab: &'a Lab,
    at: Point,
    left: AtomicUsize,
}

impl Witness for Tidies<'_> {
    fn reached(&self, point: Point) {
        let left = self.left.load(Ordering::SeqCst);
        if point != self.at || left == 0 {
            return;
        }
        self.left.store(left - 1, Ordering::SeqCst);
        for base in ["one", "two"] {
            let place = self.lab.path(base).join(own_name());
            if place.exists() {
                remove_all(&place);
            }
        }
    }
}

#[test]
fn what_is_tidied_up_is_made_once_more() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        let _places = Places::of(&lab, &["one", "two"]);
        let tidies = |at, times| Tidies {
            lab: &lab,
            at,
            left: AtomicUsize::new(times),
        };
        let told = |result: std::result::Result<Outcome, Box<Failed>>| {
            let failed = result.unwrap_err();
            let touched = failed.touched;
            let refusal = failed.error.into_refusal();
            assert!(refusal.why.contains("tidy up"), "{refusal}");
            (refusal.code, touched)
        };
        // When git is about to write, it may have begun.
        lab.write("wt/f", "changed\n");
        let late = run(&lab, &tree, &tidies(Point::Linked, 1));
        assert_eq!(told(late), (Code::RestoreIncomplete, Touched::Perhaps));
        no_residue(&lock);
        run(&lab, &tree, &tidies(Point::Released, 1)).unwrap();

        // A nested repository has the index asked for, before anything is written.
        lab.write("wt/d/x", "tree\n");
        lab.sh("wt", &["add", "d"]);
        let with = lab.sh("wt", &["write-tree"]);
        run(&lab, &with, &Nobody).unwrap();
        lab.sh(".", &["init", "-q", "wt/d"]);
        run(&lab, &with, &tidies(Point::Swept, 1)).unwrap();
        let each = run(&lab, &with, &tidies(Point::Swept, 9));
        assert_eq!(told(each), (Code::IoFailed, Touched::Nothing));
        no_residue(&lock);
    }
}

/// Removes the worktree and its git directory.
struct Removes<'a>(&'a Lab, Point);

impl Witness for Removes<'_> {
    fn reached(&self, point: Point) {
        if point == self.1 {
            self.0.sh("r", &["worktree", "remove", "--force", "../wt"]);
        }
    }
}

#[test]
fn a_worktree_that_is_removed_meanwhile_is_no_unsafe_lock() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, _) = lab.linked();
        let failed = run(&lab, &tree, &Removes(&lab, Point::Checked)).unwrap_err();
        assert_eq!(failed.touched, Touched::Nothing);
        let refusal = failed.error.into_refusal();
        assert_eq!(refusal.code, Code::WorktreeRedirected, "{refusal}");
        assert!(refusal.why.contains("removed meanwhile"));
    }
}
