//! The npm package: laid out around this very binary, on Node and Bun, and called while a bundle is imported.

use crate::harness::{Home, executable, git, said, skipped};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging/npm")
        .canonicalize()
        .unwrap()
}

fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|place| place.is_file())
}

/// A directory with the package installed, two worktrees, and a captured PATH.
struct Scene {
    home: Home,
    tree: String,
}

impl Scene {
    fn new() -> Self {
        let home = Home::new();
        let worktree = home.path().join("w");
        std::fs::create_dir(&worktree).unwrap();
        git(&worktree, &["init", "-q"]);
        std::fs::write(worktree.join("a"), "one\n").unwrap();
        git(&worktree, &["add", "-A"]);
        git(&worktree, &["commit", "-q", "-m", "one"]);
        let tree = git(&worktree, &["rev-parse", "HEAD^{tree}"]);
        let commit = git(&worktree, &["rev-parse", "HEAD"]);
        let scene = Self { home, tree };
        let place = |name: &str| scene.path(name).to_str().unwrap().to_owned();
        scene.home.json(&[
            "worktree",
            "add",
            &place("p"),
            "--repository",
            &place("w"),
            "--commit",
            &commit,
        ]);
        std::fs::create_dir(scene.path("captured")).unwrap();
        for name in ["git", "semel"] {
            let script = format!(
                "#!/bin/sh\necho \"$0 $*\" >> '{}'\nexit 1\n",
                scene.path("mark").display()
            );
            executable(&scene.path("captured").join(name), &script);
        }
        let facts = json!({
            "worktree": scene.path("w"), "pinned": scene.path("p"), "tree": scene.tree,
            "state": scene.home.state(), "mark": scene.path("mark"),
        });
        std::fs::write(scene.path("scene.json"), facts.to_string()).unwrap();
        let staged = Command::new("bash")
            .arg(package().join("pack.sh"))
            .args(["--stage", env!("CARGO_BIN_EXE_semel")])
            .arg(scene.path("node_modules/semel"))
            .output()
            .unwrap();
        assert!(staged.status.success(), "{}", said(&staged));
        for name in ["check.mjs", "import.mjs", "types.ts"] {
            std::fs::copy(package().join("test").join(name), scene.path(name)).unwrap();
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Runs a program whose PATH begins with the captured one, and whose environment says little else.
    fn run(&self, program: &Path, args: &[&str]) -> Output {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.path("captured").display());
        Command::new(program)
            .args(args)
            .current_dir(self.home.path())
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.home.path())
            .env("SCENE", self.path("scene.json"))
            .output()
            .unwrap()
    }

    fn checked(&self, program: &Path, before: &[&str]) {
        let out = self.run(program, &[before, &["check.mjs", "scene.json"]].concat());
        assert!(out.status.success(), "{}", said(&out));
        assert!(String::from_utf8_lossy(&out.stdout).contains("every check passed"));
        self.unmarked();
    }

    /// Imports a module that restores while it is loaded.
    fn imported(&self, program: &Path, module: &str) {
        std::fs::write(self.path("w/a"), "changed\n").unwrap();
        let out = self.run(program, &[module]);
        assert!(out.status.success(), "{module}: {}", said(&out));
        let told = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(told.trim(), format!("restored {} at import", self.tree));
        assert_eq!(std::fs::read_to_string(self.path("w/a")).unwrap(), "one\n");
        self.unmarked();
    }

    fn unmarked(&self) {
        let mark = std::fs::read_to_string(self.path("mark")).unwrap_or_default();
        assert_eq!(mark, "", "a program of the captured PATH was run");
    }
}

#[test]
fn the_package_keeps_its_promises_on_node() {
    let Some(node) = tool("node") else {
        return skipped("no node on PATH");
    };
    let scene = Scene::new();
    scene.checked(&node, &[]);
    scene.imported(&node, "import.mjs");
    let example = package().join("example/restore.mjs");
    std::fs::copy(example, scene.path("restore.mjs")).unwrap();
    let out = scene.run(&node, &["restore.mjs", "w", &scene.tree]);
    assert!(
        String::from_utf8_lossy(&out.stdout).contains("unpinned"),
        "{}",
        said(&out)
    );
    let out = scene.run(&node, &["restore.mjs", "w", "HEAD"]);
    assert_eq!(out.status.code(), Some(65), "{}", said(&out));
}

/// A bundle as a bundler makes it, written here: one file, far from the package.
#[test]
fn a_bundle_restores_while_it_is_imported() {
    let Some(node) = tool("node") else {
        return skipped("no node on PATH");
    };
    let scene = Scene::new();
    let text = |name: &str| std::fs::read_to_string(scene.path(name)).unwrap();
    let binary = text("node_modules/semel/lib/binary.js");
    let library =
        text("node_modules/semel/lib/index.js").replace("import { sha256 } from './binary.js';", "");
    let caller = text("import.mjs")
        .replace("import { restoreSync } from 'semel';", "")
        .replace("import { readFileSync } from 'node:fs';", "");
    let bundle = format!("{binary}\n{library}\n{caller}").replace("\nexport ", "\n");
    std::fs::create_dir_all(scene.path("dist/deep")).unwrap();
    std::fs::write(scene.path("dist/deep/bundle.mjs"), &bundle).unwrap();
    scene.imported(&node, "dist/deep/bundle.mjs");
    // Beside a stranger's package with a `bin/semel` of its own, which is not the one that it was packed with.
    std::fs::create_dir(scene.path("dist/bin")).unwrap();
    let script = format!("#!/bin/sh\ntouch '{}'\n", scene.path("mark").display());
    executable(&scene.path("dist/bin/semel"), &script);
    scene.imported(&node, "dist/deep/bundle.mjs");
    std::fs::remove_dir_all(scene.path("node_modules")).unwrap();
    let out = scene.run(&node, &["dist/deep/bundle.mjs"]);
    assert!(
        !out.status.success() && said(&out).contains("not_found"),
        "{}",
        said(&out)
    );
    scene.unmarked();
}

#[test]
fn an_archive_holds_the_package_and_nothing_else() {
    let Some(npm) = tool("npm") else {
        return skipped("no npm on PATH");
    };
    let scene = Scene::new();
    let out = Command::new(npm)
        .args(["pack", "--dry-run", "--json", "--offline"])
        .arg(scene.path("node_modules/semel"))
        .current_dir(scene.home.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let listed: Value = serde_json::from_slice(&out.stdout).unwrap();
    // Newer versions of npm answer by name, older ones by a list.
    let packed = listed.get(0).or_else(|| listed.get("semel")).unwrap();
    let mut names: Vec<&str> = packed["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    let expected = [
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
        "bin/semel",
        "example/restore.mjs",
        "lib/binary.js",
        "lib/index.d.ts",
        "lib/index.js",
        "package.json",
    ];
    assert_eq!(names, expected);
    let manifest = std::fs::read_to_string(scene.path("node_modules/semel/package.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(manifest["cpu"].as_array().unwrap().len(), 1);
    assert!(manifest.get("dependencies").is_none() && manifest.get("scripts").is_none());
}

/// Needs npm's registry, once: bundlers, Bun, and the compiler that reads the declarations.
#[test]
fn registry_npm_bundlers_bun_and_the_declarations() {
    let (Some(node), Some(npm)) = (tool("node"), tool("npm")) else {
        return skipped("no node or no npm on PATH");
    };
    let scene = Scene::new();
    let tools = scene.path("tools");
    std::fs::create_dir(&tools).unwrap();
    std::fs::write(tools.join("package.json"), "{\"private\":true}").unwrap();
    let out = Command::new(npm)
        .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
        .args(["esbuild@0.28", "bun@1", "typescript@5", "@types/node@20"])
        .current_dir(&tools)
        .output()
        .unwrap();
    if !out.status.success() {
        const WORDS: [&str; 5] = [
            "EAI_AGAIN",
            "ENOTFOUND",
            "ECONNREFUSED",
            "ETIMEDOUT",
            "ENETUNREACH",
        ];
        let told = said(&out);
        assert!(WORDS.iter().any(|word| told.contains(word)), "{told}");
        return skipped("npm's registry is not reachable");
    }
    let tool = |name: &str| tools.join("node_modules/.bin").join(name);
    let made = |out: Output| assert!(out.status.success(), "{}", said(&out));
    let esm = [
        "import.mjs",
        "--bundle",
        "--format=esm",
        "--platform=node",
        "--outfile=dist/esbuild.mjs",
    ];
    made(scene.run(&tool("esbuild"), &esm));
    assert!(
        std::fs::read_to_string(scene.path("dist/esbuild.mjs"))
            .unwrap()
            .contains("spawnSync")
    );
    scene.imported(&node, "dist/esbuild.mjs");
    let types = tools.join("node_modules/@types");
    let strict = [
        "--noEmit",
        "--strict",
        "--module",
        "nodenext",
        "--target",
        "es2022",
        "--types",
        "node",
        "--typeRoots",
    ];
    made(scene.run(
        &tool("tsc"),
        &[&strict[..], &[types.to_str().unwrap(), "types.ts"]].concat(),
    ));
    let bun = tool("bun");
    let version = scene.run(&bun, &["--version"]);
    if !version.status.success() {
        return skipped("bun was installed, and cannot run here");
    }
    scene.checked(&bun, &[]);
    scene.imported(&bun, "import.mjs");
    scene.imported(&bun, "dist/esbuild.mjs");
    made(scene.run(
        &bun,
        &["build", "import.mjs", "--target=bun", "--outfile=dist/bun.mjs"],
    ));
    scene.imported(&bun, "dist/bun.mjs");
}
