//! What a record sees: the incidents' ways of changing an installation, each refused by name.

use super::*;
use semel_core::ids::Generation;
use std::os::unix::fs::PermissionsExt;

/// An installed uv project, recorded.
struct Recorded {
    site: Site,
    plan: Plan,
    locks: Vec<Lockfile>,
    generation: Generation,
    record: InstallRecord,
}

fn recorded() -> Option<Recorded> {
    let site = site();
    let (plan, _) = uv::project(&site, "")?;
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    let locks = vec![lockfile(&site, "uv.lock")];
    let generation = generation();
    let record = bind(&plan, &generation, &locks).unwrap();
    Some(Recorded {
        site,
        plan,
        locks,
        generation,
        record,
    })
}

impl Recorded {
    fn again(&self) -> Refusal {
        refused(verify_again(&self.plan, &self.record, &self.generation))
    }

    fn bind(&self) -> Refusal {
        refused(bind(&self.plan, &self.generation, &self.locks))
    }

    fn packages(&self) -> PathBuf {
        let lib = self.site.tree.join(".venv/lib");
        let python = std::fs::read_dir(lib).unwrap().next().unwrap().unwrap();
        python.path().join("site-packages")
    }
}

#[test]
fn an_untouched_installation_passes_before_and_after_its_tests() {
    let Some(it) = recorded() else {
        return;
    };
    assert_eq!(it.record.packages, ["leaf==1.0", "other==1.0"]);
    assert_eq!(
        it.record.installer.name,
        semel_core::install::By::Installer(Installer::Uv)
    );
    verify_again(&it.plan, &it.record, &it.generation).unwrap();
    let plans = [it.plan.clone()];
    let command = ["python", "run.py", "{report}"];
    let run = run_tests(&it.site.tests("test", &plans, &command), &never()).unwrap();
    assert_eq!(run.verdict.unwrap().passed, 1);
    verify_again(&it.plan, &it.record, &it.generation).unwrap();
    let bytes = it.record.encode().unwrap();
    assert_eq!(InstallRecord::decode(&bytes).unwrap(), it.record);
}

/// A file that an earlier attempt, a cache or a leaked process changed.
#[test]
fn an_edited_file_is_seen() {
    let Some(it) = recorded() else {
        return;
    };
    std::fs::write(it.packages().join("leaf/__init__.py"), "LIMIT = 2\n").unwrap();
    for refusal in [it.again(), it.bind()] {
        assert_eq!(refusal.code, Code::RecordMismatch);
        assert!(refusal.names[0].ends_with("leaf/__init__.py"), "{refusal}");
    }
}

#[test]
fn a_changed_mode_is_seen() {
    let Some(it) = recorded() else {
        return;
    };
    let file = it.packages().join("leaf/__init__.py");
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(it.again().code, Code::RecordMismatch);
}

/// Case A02: the metadata is whole, the package is gone.
#[test]
fn a_ghost_distribution_is_seen() {
    let Some(it) = recorded() else {
        return;
    };
    let package = it.packages().join("leaf");
    std::fs::rename(package, it.site.stock.join("gone")).unwrap();
    assert_eq!(it.again().code, Code::RecordMismatch);
    assert_eq!(it.bind().code, Code::RecordMismatch);
}

/// Case A04: an editable install that leads into another checkout.
#[test]
fn an_editable_of_another_checkout_is_seen() {
    let Some(it) = recorded() else {
        return;
    };
    let elsewhere = it.site.stock.join("main/src");
    std::fs::create_dir_all(&elsewhere).unwrap();
    let packages = it.packages();
    let path = format!("{}\n", elsewhere.display());
    std::fs::write(packages.join("__editable__.other-1.0.pth"), &path).unwrap();
    let info = packages.join("other-1.0.dist-info");
    let direct = format!(
        r#"{{"url":"file://{}","dir_info":{{"editable":true}}}}"#,
        elsewhere.display()
    );
    std::fs::write(info.join("direct_url.json"), &direct).unwrap();
    assert_eq!(it.again().code, Code::RecordMismatch);
    let refusal = it.bind();
    assert_eq!(refusal.code, Code::RecordOutsideRoot, "{refusal}");
}

#[test]
fn a_stray_path_file_is_seen() {
    let Some(it) = recorded() else {
        return;
    };
    std::fs::write(it.packages().join("zz.pth"), "import os\n").unwrap();
    for refusal in [it.again(), it.bind()] {
        assert_eq!(refusal.code, Code::RecordMismatch);
        assert!(refusal.names[0].ends_with("zz.pth"), "{refusal}");
    }
}

#[test]
fn a_swapped_interpreter_is_seen() {
    let Some(it) = recorded() else {
        return;
    };
    let python = it.site.tree.join(".venv/bin/python");
    std::fs::remove_file(&python).unwrap();
    std::os::unix::fs::symlink("/bin/true", &python).unwrap();
    assert_eq!(it.again().code, Code::RecordMismatch);
    assert_eq!(it.bind().code, Code::RecordOutsideRoot);
}

#[test]
fn a_moved_lock_and_another_generation_are_seen() {
    let Some(it) = recorded() else {
        return;
    };
    let lock = it.site.tree.join("uv.lock");
    let text = std::fs::read_to_string(&lock).unwrap();
    std::fs::write(&lock, format!("{text}# only a comment\n")).unwrap();
    assert_eq!(it.again().code, Code::LockfileDrift);
    std::fs::remove_file(&lock).unwrap();
    assert_eq!(it.again().code, Code::LockfileDrift);
    std::fs::write(&lock, text).unwrap();
    let other = generation();
    let refusal = refused(verify_again(&it.plan, &it.record, &other));
    assert_eq!(refusal.code, Code::EvidenceForeign);
}

/// Vectors 33 and 34: attempt 1 edits a file of its environment, and with it uv's cache. What uv itself then installs
/// into a fresh environment is poisoned; a certification takes nothing from there, whatever the operator configured.
#[test]
fn a_poisoned_cache_reaches_no_generation() {
    let site = site();
    let Some((mut plan, index)) = uv::project(&site, "") else {
        return;
    };
    let Tools::Uv { uv, python } = &plan.tools else {
        unreachable!();
    };
    let cache = site.stock.join("shared");
    let sync = |environment: &Path| {
        let env = [
            ("UV_DEFAULT_INDEX", OsStr::new(&index)),
            ("UV_CACHE_DIR", cache.as_os_str()),
            ("UV_PYTHON", python.path.as_os_str()),
            ("UV_LINK_MODE", OsStr::new("hardlink")),
            ("UV_PROJECT_ENVIRONMENT", environment.as_os_str()),
        ];
        let args = ["sync", "--locked", "--no-install-project"];
        prepare(&uv.path, &args, &site.tree, &env);
        let lib = std::fs::read_dir(environment.join("lib"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        lib.path().join("site-packages/leaf/__init__.py")
    };
    let first = sync(&site.stock.join("first"));
    assert_eq!(std::fs::read_to_string(&first).unwrap(), "LIMIT = 1\n");
    std::fs::write(first, "LIMIT = 9\n").unwrap();
    let second = sync(&site.stock.join("second"));
    assert_eq!(
        std::fs::read_to_string(second).unwrap(),
        "LIMIT = 9\n",
        "the tool's own weakness"
    );
    plan.network_env
        .insert("UV_CACHE_DIR".into(), cache.clone().into_os_string());
    plan.isolation.read_only.push(cache);
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    let locks = [lockfile(&site, "uv.lock")];
    let record = bind(&plan, &generation(), &locks).unwrap();
    assert!(record.weak.is_empty(), "{:?}", record.weak);
    let lib = std::fs::read_dir(site.tree.join(".venv/lib"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let leaf = lib.path().join("site-packages/leaf/__init__.py");
    assert_eq!(std::fs::read_to_string(leaf).unwrap(), "LIMIT = 1\n");
}

/// The store itself: an entry that was changed is refused by the name of the artifact, and the next attempt heals.
#[test]
fn a_poisoned_store_is_refused_by_name() {
    let site = site();
    let Some((mut plan, _)) = uv::project(&site, "") else {
        return;
    };
    fetch(&plan, &never()).unwrap();
    let line = "find artifacts/sha256 -type f | while read -r f; do chmod u+w \"$f\"; echo poison >> \"$f\"; chmod a-w \"$f\"; done";
    prepare(Path::new("/bin/sh"), &["-c", line], site.dir.path(), &[]);
    let refusal = refused(install(&plan, &never()));
    assert_eq!(refusal.code, Code::RecordMismatch);
    assert_eq!(refusal.reason.as_deref(), Some("poisoned_artifact"));
    assert!(refusal.names[0].ends_with(".whl"), "{refusal}");
    assert!(!site.tree.join(".venv").exists(), "nothing of it was installed");
    for attempt in ["second", "third"] {
        plan.home = site.stock.join(attempt);
        std::fs::create_dir(&plan.home).unwrap();
        fetch(&plan, &never()).unwrap();
        // One refusal names one entry: each attempt sets aside what it met.
        match install(&plan, &never()) {
            Ok(_) => break,
            Err(error) => assert_eq!((error.code(), attempt), (Code::RecordMismatch, "second")),
        }
    }
    let record = bind(&plan, &generation(), &[lockfile(&site, "uv.lock")]).unwrap();
    assert_eq!(record.packages, ["leaf==1.0", "other==1.0"]);
}

/// Cases A01 and A05, seen before anything is installed.
#[test]
fn a_cut_lock_does_not_bind() {
    let site = site();
    let Some(_) = uv::project(&site, "") else {
        return;
    };
    let text = std::fs::read_to_string(site.tree.join("uv.lock")).unwrap();
    let path = RelPath::parse(b"uv.lock").unwrap();
    for end in [text.len() * 2 / 5, text.rfind("[[package]]").unwrap()] {
        let refusal = semel_core::lockset::parse(&path, &text.as_bytes()[..end]).unwrap_err();
        assert_eq!(refusal.code, Code::LockIncomplete, "{refusal}");
    }
}

/// pip leaves the wheels, so that even a file whose RECORD was mended with it is seen.
#[test]
fn a_mended_record_is_seen_against_the_kept_wheel() {
    let site = site();
    let Some(plan) = pip::project(&site) else {
        return;
    };
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    let locks = [lockfile(&site, "requirements.txt")];
    let generation = generation();
    let record = bind(&plan, &generation, &locks).unwrap();
    assert_eq!(record.packages, ["leaf==1.0"]);
    verify_again(&plan, &record, &generation).unwrap();
    let script = r#"
import base64, hashlib, pathlib, sys
site = next(pathlib.Path(sys.argv[1]).glob(".venv/lib/*/site-packages"))
(site / "leaf.py").write_text("LIMIT = 2\n")
digest = base64.urlsafe_b64encode(hashlib.sha256(b"LIMIT = 2\n").digest()).rstrip(b"=").decode()
record = site / "leaf-1.0.dist-info/RECORD"
rows = [f"leaf.py,sha256={digest},10" if row.startswith("leaf.py,") else row for row in record.read_text().splitlines()]
record.write_text("\n".join(rows) + "\n")
"#;
    let python = plan.tools.python().unwrap().path.clone();
    let tree = site.tree.to_str().unwrap();
    prepare(&python, &["-I", "-c", script, tree], &site.stock, &[]);
    let refusal = refused(bind(&plan, &generation, &locks));
    assert_eq!(refusal.code, Code::RecordMismatch);
    assert!(refusal.names[1].ends_with("site-packages/leaf.py"), "{refusal}");
}

#[test]
fn an_edited_node_module_is_seen() {
    let site = site();
    let Some(plan) = npm::project(&site) else {
        return;
    };
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    let locks = [lockfile(&site, "package-lock.json")];
    let generation = generation();
    let record = bind(&plan, &generation, &locks).unwrap();
    verify_again(&plan, &record, &generation).unwrap();
    std::fs::write(
        site.tree.join("node_modules/leaf/index.js"),
        "exports.limit = 2;\n",
    )
    .unwrap();
    assert_eq!(
        refused(verify_again(&plan, &record, &generation)).code,
        Code::RecordMismatch
    );
    std::fs::create_dir(site.tree.join("node_modules/evil")).unwrap();
    std::fs::write(site.tree.join("node_modules/evil/index.js"), "").unwrap();
    assert_eq!(
        refused(bind(&plan, &generation, &locks)).code,
        Code::RecordMismatch
    );
}
