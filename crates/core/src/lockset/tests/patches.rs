//! Patches, and what else a lock may name that is more than a package of a registry.

use super::*;

const PATCH: &str = "patch:ms@npm%3A^2.1.3#~/.yarn/patches/ms.patch";
const OWN: &str = "\"ms@npm:^2.1.3\":\n  version: 2.1.3\n  resolution: \"ms@npm:2.1.3\"\n  checksum: 10c0/d924b57e7312b3b63ad21fc5b3dc0af5e78d61a1fc7cfb5457edaf26326bf62be5307cc87ffb6862ef1c2b33b0233cdb5d4f01c4c958cc0d660948b65a287a48\n  languageName: node\n  linkType: hard\n\n";

/// The manifests of the lock of Yarn, with this one at the root.
fn with(package: &str) -> Declared {
    declared(&[
        ("package.json", package),
        ("packages/b/package.json", BERRY_PACKAGE_B),
    ])
}

/// The lock of Yarn with a patch on `ms`, and its manifest.
fn patched() -> (String, String) {
    let entry = format!(
        "\"ms@{PATCH}\":\n  version: 2.1.3\n  resolution: \"ms@patch:ms@npm%3A2.1.3#~/.yarn/patches/ms.patch::version=2.1.3&hash=0123ab\"\n  checksum: 10c0/{}\n  languageName: node\n  linkType: hard\n\n",
        "5d".repeat(64)
    );
    let lock = edit(BERRY_LOCK, OWN, &format!("{OWN}{entry}"));
    let lock = edit(&lock, "    ms: \"npm:^2.1.3\"", &format!("    ms: \"{PATCH}\""));
    let package = edit(
        BERRY_PACKAGE,
        "\"ms\": \"^2.1.3\"",
        &format!("\"ms\": \"{PATCH}\""),
    );
    (lock, package)
}

#[track_caller]
fn bad(lock: &str, package: &str, part: &str) {
    refused("yarn.lock", lock, &with(package), part);
}

#[test]
fn patches_and_links_as_yarn_writes_them_are_taken() {
    let manifests = declared(&[
        ("package.json", BERRY_PATCHED_PACKAGE),
        ("packages/c/package.json", BERRY_PATCHED_PACKAGE_C),
    ]);
    check("yarn.lock", BERRY_PATCHED_LOCK.as_bytes(), &manifests).unwrap();
    let lock = parse(&at("yarn.lock"), BERRY_PATCHED_LOCK.as_bytes()).unwrap();
    let patches = ["ms", "n", "o"].map(|name| at(&format!(".yarn/patches/{name}.patch")));
    assert_eq!(Vec::from_iter(lock.patches()), patches);
}

#[test]
fn a_patch_of_yarn_stands_on_a_package_of_its_own_entry() {
    let (lock, package) = patched();
    check("yarn.lock", lock.as_bytes(), &with(&package)).unwrap();
    let read = parse(&at("yarn.lock"), lock.as_bytes()).unwrap();
    assert_eq!(Vec::from_iter(read.patches()), [at(".yarn/patches/ms.patch")]);
    // What is patched has an entry of its own, of that version.
    bad(&edit(&lock, OWN, ""), &package, "ms@npm");
    let other = OWN.replace("2.1.3", "2.1.2").replace("d924", "d925");
    bad(
        &edit(&lock, OWN, &format!("{OWN}{other}")).replace("ms@npm%3A2.1.3#", "ms@npm%3A2.1.2#"),
        &package,
        "patch",
    );
    for inner in [
        "exec%3A./.yarn/patches/gen.cjs",
        "http%3A//127.0.0.1/evil.git%23commit=0",
        "patch%3Ams@exec%253A./x%23~/y",
    ] {
        bad(
            &lock.replace("npm%3A^2.1.3", inner),
            &package.replace("npm%3A^2.1.3", inner),
            inner,
        );
        bad(&lock.replace("npm%3A2.1.3", inner), &package, inner);
    }
    bad(
        &lock.replace(".yarn/patches/ms.patch", "../../ms.patch"),
        &package,
        "ms@patch",
    );
}

#[test]
fn no_parameter_leads_yarn_elsewhere() {
    // Parameters of a package of a registry, on either side.
    let leak = "::__archiveUrl=http%3A%2F%2F127.0.0.1%2Fms.tgz";
    bad(
        &edit(BERRY_LOCK, "\"ms@npm:2.1.3\"", &format!("\"ms@npm:2.1.3{leak}\"")),
        BERRY_PACKAGE,
        "archiveUrl",
    );
    bad(
        &edit(
            BERRY_LOCK,
            "\"ms@npm:^2.1.3\"",
            &format!("\"ms@npm:^2.1.3{leak}\""),
        ),
        BERRY_PACKAGE,
        "archiveUrl",
    );
    bad(
        &edit(
            BERRY_LOCK,
            "old-ms@npm:ms@2.0.0\"",
            &format!("old-ms@npm:ms@2.0.0{leak}\""),
        ),
        BERRY_PACKAGE,
        "archiveUrl",
    );
    // Yarn splits keys at commas without a space, too.
    bad(
        &edit(
            BERRY_LOCK,
            "\"ms@npm:^2.1.3\"",
            "\"ms@npm:^2.1.3,ms@exec:./x.cjs\"",
        ),
        BERRY_PACKAGE,
        "exec",
    );
    bad(
        &edit(BERRY_LOCK, "\"ms@npm:^2.1.3\"", "\"other@npm:^2.1.3\""),
        BERRY_PACKAGE,
        "other@",
    );
}

#[test]
fn what_a_manifest_asks_yarn_for_is_data() {
    // What a manifest asks for beside what is compared: `resolutions`, and a section that Yarn prefers.
    for range in [
        "exec:./x.cjs",
        "user/repo",
        "patch:ms@exec%3A./x.cjs#~/y.patch",
        "https://127.0.0.1/x.tgz",
    ] {
        let resolved = edit(
            BERRY_PACKAGE,
            "\"private\": true,",
            &format!("\"private\": true, \"resolutions\": {{\"other/ms\": \"{range}\"}},"),
        );
        bad(BERRY_LOCK, &resolved, range);
        let twice = edit(
            BERRY_PACKAGE,
            "\"semver\": \"^7.6.0\"",
            &format!("\"semver\": \"^7.6.0\", \"ms\": \"{range}\""),
        );
        bad(BERRY_LOCK, &twice, range);
    }
    let plain = edit(
        BERRY_PACKAGE,
        "\"private\": true,",
        "\"private\": true, \"resolutions\": {\"@a/x/ms\": \"^2.1.3\"},",
    );
    check("yarn.lock", BERRY_LOCK.as_bytes(), &with(&plain)).unwrap();
}

#[test]
fn patches_of_pnpm_are_files_of_the_tree() {
    let manifests = declared(&[("package.json", PNPM_PACKAGE)]);
    let with = |path: &str| {
        edit(
            PNPM_LOCK,
            "importers:\n",
            &format!("patchedDependencies:\n  ms@2.1.3:\n    hash: 0123ab\n    path: {path}\n\nimporters:\n"),
        )
    };
    check("pnpm-lock.yaml", with("patches/ms.patch").as_bytes(), &manifests).unwrap();
    for path in ["../ms.patch", "/etc/passwd", "~/x", "."] {
        refused("pnpm-lock.yaml", &with(path), &manifests, "ms@2.1.3");
    }
}
