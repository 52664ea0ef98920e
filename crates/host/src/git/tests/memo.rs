//! What a process remembers of a repository: it spares gits, and nothing that changed goes unseen.

use super::restore::{code, options};
use super::*;

/// A git that writes down what it is asked.
struct Counted {
    git: Git,
    log: PathBuf,
}

impl Counted {
    fn new(lab: &Lab) -> Self {
        let (script, log) = (lab.path("counted-git"), lab.path("log"));
        let text = format!(
            "#!/bin/sh\necho \"$1\" >>'{}'\nexec '{}' \"$@\"\n",
            log.display(),
            lab.git.program().display()
        );
        executable(&script, &text);
        let git = Git::at(&script).unwrap();
        Self { git, log }
    }

    fn restore(&self, lab: &Lab, tree: &str) -> std::result::Result<Outcome, Box<Failed>> {
        std::fs::write(&self.log, "").unwrap();
        restore(&self.git, &lab.path("wt"), tree, options(60_000), &cancel())
    }

    fn asked(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Restores until nothing is asked any more but what writes.
    fn learn(&self, lab: &Lab, tree: &str) {
        until("everything is learnt", || {
            self.restore(lab, tree).unwrap();
            self.asked() == ["read-tree"]
        });
    }
}

fn missing(result: std::result::Result<Outcome, Box<Failed>>) {
    assert_eq!(code(result), (Code::ObjectMissing, Touched::Nothing));
}

fn object(lab: &Lab, repo: &str, id: &str) -> PathBuf {
    lab.path(&format!("{repo}/.git/objects/{}/{}", &id[..2], &id[2..]))
}

#[test]
fn what_cannot_have_changed_is_not_asked_again_and_a_changed_configuration_is_seen() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/sub/.gitattributes", "*.txt eol=lf\n");
        let (tree, _) = lab.linked();
        let counted = Counted::new(&lab);
        counted.restore(&lab, &tree).unwrap();
        assert!(counted.asked().len() > 2, "{:?}", counted.asked());
        counted.learn(&lab, &tree);
        lab.write("wt/f", "changed\n");
        counted.restore(&lab, &tree).unwrap();
        assert_eq!(
            (counted.asked(), lab.read("wt/f")),
            (vec!["read-tree".to_owned()], "one\n".to_owned())
        );
        // Of the same length, so that the size tells nothing.
        lab.sh("r", &["config", "core.worktred", "/nowhere"]);
        counted.learn(&lab, &tree);
        let config = lab.read("r/.git/config").replace("worktred", "worktree");
        lab.write("r/.git/config", config);
        let refused = counted.restore(&lab, &tree);
        assert_eq!(code(refused), (Code::WorktreeRedirected, Touched::Nothing));
        lab.sh("r", &["config", "--unset", "core.worktree"]);
        counted.learn(&lab, &tree);
        // What is included has no say.
        lab.sh("r", &["config", "include.path", "other"]);
        lab.write("r/.git/other", "[core]\nworktree = /nowhere\n");
        counted.restore(&lab, &tree).unwrap();
    }
}

#[test]
fn an_object_that_vanished_or_was_written_over_is_missed() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, _) = lab.linked();
        let counted = Counted::new(&lab);
        let blob = lab.sh("wt", &["rev-parse", "HEAD:f"]);
        lab.write("wt/f", "changed\n");
        for (id, emptied) in [(&blob, false), (&tree, false), (&blob, true), (&tree, true)] {
            counted.learn(&lab, &tree);
            let (place, kept) = (object(&lab, "r", id), lab.path("kept"));
            if emptied {
                std::fs::copy(&place, &kept).unwrap();
                std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o644)).unwrap();
                std::fs::File::options()
                    .write(true)
                    .truncate(true)
                    .open(&place)
                    .unwrap();
            } else {
                std::fs::rename(&place, &kept).unwrap();
            }
            lab.write("wt/f", "changed\n");
            missing(counted.restore(&lab, &tree));
            assert_eq!(lab.read("wt/f"), "changed\n");
            std::fs::rename(&kept, &place).unwrap();
        }
        // The same in a pack.
        lab.sh("r", &["repack", "-adq"]);
        lab.sh("r", &["prune-packed", "-q"]);
        assert!(!object(&lab, "r", &blob).exists());
        counted.learn(&lab, &tree);
        let packs = lab.path("r/.git/objects/pack");
        std::fs::rename(&packs, lab.path("kept")).unwrap();
        std::fs::create_dir(&packs).unwrap();
        missing(counted.restore(&lab, &tree));
        std::fs::remove_dir(&packs).unwrap();
        std::fs::rename(lab.path("kept"), &packs).unwrap();
        counted.learn(&lab, &tree);
        let pack = std::fs::read_dir(&packs)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let index = pack
            .into_iter()
            .find(|path| path.extension().is_some_and(|e| e == "idx"))
            .unwrap();
        std::fs::rename(&index, lab.path("kept")).unwrap();
        missing(counted.restore(&lab, &tree));
    }
}

#[test]
fn what_is_borrowed_is_looked_at_where_it_lies() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/f", "one\n");
        lab.commit("r", "one");
        lab.sh("r", &["clone", "-q", "--shared", ".", "../wt"]);
        let (tree, _) = lab.place();
        let blob = lab.sh("wt", &["rev-parse", "HEAD:f"]);
        let counted = Counted::new(&lab);
        counted.learn(&lab, &tree);
        let place = object(&lab, "r", &blob);
        std::fs::rename(&place, lab.path("kept")).unwrap();
        missing(counted.restore(&lab, &tree));
        std::fs::rename(lab.path("kept"), &place).unwrap();
        counted.learn(&lab, &tree);
        lab.write("wt/.git/objects/info/alternates", "/nonexistent\n");
        let refused = counted.restore(&lab, &tree).unwrap_err();
        assert_eq!(refused.touched, Touched::Nothing);
    }
}

#[test]
fn an_executable_that_was_exchanged_is_another() {
    let gits = gits();
    let [one, other] = gits.as_slice() else { return };
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().canonicalize().unwrap().join("git");
    // Copied by another process: a child that another test forks meanwhile would keep it open for writing.
    let put = |git: &Git| {
        let mut copy = std::process::Command::new("/bin/cp");
        assert!(copy.arg(git.program()).arg(&place).status().unwrap().success());
    };
    put(one);
    until("it is known", || {
        assert_eq!(Git::at(&place).unwrap().sha256(), one.sha256());
        let look = Look::of_path(&place).unwrap().unwrap();
        KNOWN.get(&(place.clone(), look)).is_some()
    });
    // Over the same file, and by another one of the same name.
    put(other);
    assert_eq!(Git::at(&place).unwrap().version(), other.version());
    std::fs::remove_file(&place).unwrap();
    put(one);
    let again = Git::at(&place).unwrap();
    assert_eq!((again.version(), again.sha256()), (one.version(), one.sha256()));
    // A script may answer otherwise another day, by the same bytes.
    std::fs::remove_file(&place).unwrap();
    executable(
        &place,
        &format!("#!/bin/sh\nexec '{}.d' \"$@\"\n", place.display()),
    );
    let behind = place.with_file_name("git.d");
    std::os::unix::fs::symlink(one.program(), &behind).unwrap();
    assert_eq!(Git::at(&place).unwrap().version(), one.version());
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(Git::at(&place).unwrap().version(), one.version());
    std::fs::remove_file(&behind).unwrap();
    std::os::unix::fs::symlink(other.program(), &behind).unwrap();
    assert_eq!(Git::at(&place).unwrap().version(), other.version());
}
