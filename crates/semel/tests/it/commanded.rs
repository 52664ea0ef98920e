//! Installations by a command of the job: certified, recorded and named as unbound; everything that goes wrong in one has
//! its name.

use crate::cases::lab::{Lab, answer};
use crate::harness::{Spoken, processes_with, said, signal, skipped, statement, text, wait_until};
use crate::vectors::lab::{Liar, certified, waiting};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

const TEST: &str = "python run.py {report}";
const SH: &str = "sh install.sh";
/// Makes an environment from the wheels of the tree, by nothing but what every Python has.
const GOOD: &str = "set -e\n[ -z \"$PIP_INDEX_URL$UV_DEFAULT_INDEX\" ]\npython3 -m venv --without-pip .venv\n\
    python3 -I -m pip --python .venv/bin/python install --quiet --no-index --find-links wheels --require-hashes \
    -r requirements.txt\n";
const LEAF: &str = ".venv/lib/python3*/site-packages/leaf/__init__.py";

/// A project whose wheels lie in its tree, and a script that installs them.
fn lab() -> Lab {
    let lab = Lab::new(&json!([
        ["leaf", "1.0", {"leaf/__init__.py": "LIMIT = 1\n"}],
        ["evil", "1.0", {"evil/__init__.py": ""}]
    ]));
    lab.project("\"leaf==1.0\"", "import leaf; assert leaf.LIMIT == 1");
    let stock = lab.site.at("stock");
    let wheels = lab.site.repository().join("wheels");
    std::fs::create_dir(&wheels).unwrap();
    for (file, digest) in &lab.wheels {
        std::fs::copy(stock.join(file), wheels.join(file)).unwrap();
        if file.starts_with("leaf") {
            lab.write("requirements.txt", &format!("leaf==1.0 --hash=sha256:{digest}\n"));
        }
    }
    lab.write("install.sh", GOOD);
    lab
}

fn record(done: &Value) -> Value {
    serde_json::from_slice(&std::fs::read(text(&done["install_record"])).unwrap()).unwrap()
}

fn gate(lab: &Lab, done: &Value, commit: &str, rule: &str) -> Output {
    let key = lab.site.json(&["key", "show"]);
    let key = key["ssh"].as_str().unwrap().trim().to_owned();
    let policy = format!("[gate]\nkeys = [\"{key}\"]\nrecipe = \"any\"\n{rule}");
    std::fs::write(lab.site.at("policy.toml"), policy).unwrap();
    let envelope = text(&done["envelope"]);
    let args = ["gate", "--certificate", envelope, "--repository", "repo"];
    let more = ["--commit", commit, "--policy", "policy.toml", "--json"];
    lab.site.run(&[&args[..], &more].concat())
}

#[test]
fn a_command_installs_and_the_gate_asks_whether_that_is_wanted() {
    let lab = lab();
    let out = lab.certify(SH, TEST);
    assert!(out.status.success(), "{}", said(&out));
    let done = answer(&out);
    let record = record(&done);
    let [record] = &record.as_array().unwrap()[..] else {
        panic!("{record}")
    };
    assert_eq!(record["installer"]["name"], "command");
    assert_eq!(record["installer"]["command"], json!(["sh", "install.sh"]));
    assert_eq!(record["packages"], json!(["leaf==1.0"]));
    assert_eq!(record["artifacts"], json!({}));
    assert_eq!(
        record["roots"],
        json!([{"kind": "python", "place": "tree/.venv"}])
    );
    assert!(record["locks"]["requirements.txt"].is_string(), "{record}");

    let predicate = &statement(text(&done["envelope"]).as_ref())["predicate"];
    let weak = predicate["weak"].to_string();
    assert!(weak.contains("by the command `sh install.sh`"), "{weak}");
    let unbound = |weak: &&Value| weak["name"] == "unbound_install";
    assert!(
        predicate["weak"]
            .as_array()
            .unwrap()
            .iter()
            .any(|weak| unbound(&weak))
    );
    let tools = predicate["toolchain"].to_string();
    assert!(
        tools.contains("\"sh\"") && tools.contains("\"python\""),
        "{tools}"
    );

    let commit = lab.site.git(&["rev-parse", "HEAD"]);
    let refused = gate(&lab, &done, &commit, "");
    assert_eq!(refused.status.code(), Some(30), "{}", said(&refused));
    let verdict = answer(&refused);
    assert!(verdict.to_string().contains("unbound_install"), "{verdict}");
    let passed = gate(&lab, &done, &commit, "unbound_install = \"accepted\"\n");
    assert!(passed.status.success(), "{}", said(&passed));
}

#[test]
fn a_file_of_the_tree_is_a_command_and_a_misspelt_name_is_none() {
    let lab = lab();
    lab.write(
        "tools/install",
        &format!("#!/bin/sh\n{GOOD}mkdir vendor; echo 1 > vendor/data\n"),
    );
    let place = lab.site.repository().join("tools/install");
    let refused = lab.certify("tools/install", TEST);
    assert_eq!(answer(&refused)["code"], "not_found", "{}", said(&refused));
    for gone in ["nosuch x", "tools/nosuch", "/nosuch/x"] {
        let refused = lab.certify(gone, TEST);
        assert_eq!(
            answer(&refused)["code"],
            "not_found",
            "{gone}: {}",
            said(&refused)
        );
    }
    // That is known before anything begins: no attempt is counted, no generation opened.
    let volumes = lab.site.json(&["volume", "list"]).to_string();
    assert!(!volumes.contains("\"cert\""), "{volumes}");
    std::fs::set_permissions(place, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let out = lab.certify("tools/install", TEST);
    assert!(out.status.success(), "{}", said(&out));
    let done = answer(&out);
    let text_of = record(&done).to_string();
    assert!(text_of.contains("tree/vendor/data"), "{text_of}");
    let weak = statement(text(&done["envelope"]).as_ref())["predicate"]["weak"].to_string();
    assert!(weak.contains("vendor/data is of no known layout"), "{weak}");
    for typo in ["uvx", "pyp", "sh"] {
        let out = lab.certify(typo, TEST);
        assert_eq!(out.status.code(), Some(64), "{typo}: {}", said(&out));
        assert!(
            said(&out).contains("uv, pip, poetry, npm, pnpm, yarn, cargo"),
            "{}",
            said(&out)
        );
    }
}

/// Scripts that install nothing of use.
const ALONE: [(&str, i32, &str); 5] = [
    ("exit 7", 22, "install_failed (command)"),
    ("kill -9 $$", 22, "install_failed (command)"),
    ("true", 22, "install_failed (nothing_installed)"),
    ("mkdir vendor; echo 1 > vendor/a", 25, "record_mismatch"),
    ("python3 -m venv --without-pip .venv", 25, "record_mismatch"),
];

/// What a script does besides, when it has done what the good one does.
#[rustfmt::skip]
const AFTER: [(&str, i32, &str); 29] = [
    ("$pip evil", 25, "record_mismatch"),
    ("echo 'LIMIT = 2' > $leaf", 25, "record_mismatch"),
    ("rm $leaf", 25, "record_mismatch"),
    ("touch .venv/lib/stray.py", 25, "record_mismatch"),
    ("mkdir vendor; mkfifo vendor/pipe", 25, "record_mismatch"),
    ("ln -s /usr/bin/env .venv/bin/leaf", 26, "record_outside_root"),
    ("mkdir vendor; ln -s /etc/passwd vendor/l", 26, "record_outside_root"),
    ("mkdir vendor; ln -s ../../x vendor/l", 26, "record_outside_root"),
    ("ln -s \"$HOME\" vendor", 26, "record_outside_root"),
    ("mkdir vendor; echo 1 > vendor/a; ln vendor/a vendor/b", 26, "record_outside_root (hard_link)"),
    ("echo '# more' >> run.py", 28, "tree_mismatch"),
    ("rm run.py", 28, "tree_mismatch"),
    ("chmod +x run.py", 28, "tree_mismatch"),
    ("cp -p run.py x; echo >> run.py; cat x > run.py; rm x", 28, "tree_mismatch (touched)"),
    ("cp -p run.py x; mv x run.py", 28, "tree_mismatch (touched)"),
    ("mv wheels w; mkdir wheels; rmdir wheels; mv w wheels", 28, "tree_mismatch (touched)"),
    ("mkdir wheels/x; rmdir wheels/x", 28, "tree_mismatch (touched)"),
    ("echo '# more' >> requirements.txt", 6, "lockfile_drift"),
    ("rm requirements.txt", 6, "lockfile_drift"),
    ("echo > conftest.py", 28, "tree_mismatch (new_file)"),
    ("echo > leaf.py", 28, "tree_mismatch (new_file)"),
    ("mkdir leaf; echo > leaf/__init__.py", 28, "tree_mismatch (new_file)"),
    ("mkdir vendor; echo > vendor/test_more.py", 28, "tree_mismatch (new_file)"),
    ("mkdir .cargo; echo > .cargo/config.toml", 28, "tree_mismatch (new_file)"),
    ("ln -s . again", 28, "tree_mismatch (new_file)"),
    ("mkdir vendor; ln -s wheels vendor/tests", 28, "tree_mismatch (new_file)"),
    ("mkdir -p node_modules/.bin", 25, "record_mismatch"),
    ("mkdir -p node_modules/.bin; cp install.sh node_modules/.bin/sh; chmod +x node_modules/.bin/sh", 25, "record_mismatch"),
    ("mkdir -p node_modules; ln -s ../wheels node_modules/.bin", 25, "record_mismatch"),
];

#[test]
fn what_a_command_does_besides_has_its_name() {
    let lab = lab();
    let more = format!(
        "leaf=$(echo {LEAF})\npip='python3 -I -m pip --python .venv/bin/python install --quiet --no-index --find-links wheels'"
    );
    let after = AFTER.map(|(script, exit, code)| (format!("{GOOD}{more}\n{script}\n"), exit, code));
    let alone = ALONE.map(|(script, exit, code)| (script.to_owned(), exit, code));
    for (script, exit, code) in alone.into_iter().chain(after) {
        lab.write("install.sh", &script);
        let out = lab.certify(SH, TEST);
        let refusal = answer(&out);
        let name = match refusal["reason"].as_str() {
            Some(reason) => format!("{} ({reason})", text(&refusal["code"])),
            None => text(&refusal["code"]).to_owned(),
        };
        let got = (out.status.code(), name.as_str());
        assert_eq!(got, (Some(exit), code), "{script}: {}", said(&out));
        if code == "install_failed (command)" {
            let stderr = text(&refusal["names"][0]);
            assert!(
                stderr.ends_with("/install-stderr") && Path::new(stderr).is_file(),
                "{stderr}"
            );
        }
    }
    assert_eq!(lab.site.passes(), 0);
}

#[test]
fn what_a_command_leaves_running_is_ended_before_anything_is_recorded() {
    let lab = lab();
    let writes =
        "(trap '' TERM HUP; exec setsid sh -c 'while :; do echo x >> run.py; done') >/dev/null 2>&1 &";
    // It would write to the source if it lived for any time at all after the command.
    lab.write("install.sh", &format!("{GOOD}(sleep 1000 &) \n"));
    let out = lab.certify(SH, TEST);
    assert!(out.status.success(), "{}", said(&out));
    lab.write("install.sh", &format!("{GOOD}{writes}\n"));
    let out = lab.certify(SH, TEST);
    let code = answer(&out)["code"].clone();
    assert!(code == "tree_mismatch" || out.status.success(), "{}", said(&out));

    lab.write("install.sh", "trap '' TERM\nsleep 1000\n");
    let commit = lab.site.commit_all("slow");
    let args = [
        "certify",
        "--job",
        "case",
        "--repository",
        "repo",
        "--git",
        &commit,
    ];
    let args = [&args[..], &["--install", SH, "--test", TEST, "--timeout", "2s"]].concat();
    let out = lab.command(&args).output().unwrap();
    assert_eq!(answer(&out)["code"], "timed_out", "{}", said(&out));
    assert!(
        answer(&out)["names"][0]
            .as_str()
            .unwrap()
            .ends_with("/install-stderr")
    );
}

#[test]
fn a_kill_while_a_command_runs_is_in_nobodys_way() {
    let lab = lab();
    let marker = format!("sleep 4{}", std::process::id());
    lab.write("install.sh", &format!("{GOOD}{marker}\n"));
    let commit = lab.site.commit_all("slow");
    let args = [
        "certify",
        "--job",
        "case",
        "--repository",
        "repo",
        "--git",
        &commit,
    ];
    let mut command = lab.command(&[&args[..], &["--install", SH, "--test", TEST]].concat());
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let spoken = Spoken::of(child);
    assert!(spoken.hears("bind "));
    let marker = marker.replace(' ', "\0");
    let runs = || !processes_with(&marker).is_empty();
    assert!(wait_until(Duration::from_secs(60), runs));
    signal(id, libc::SIGKILL);
    assert!(
        wait_until(Duration::from_secs(10), || !runs()),
        "what it started ends with it"
    );
    drop(spoken.output());
    assert_eq!(lab.site.passes(), 0);
    lab.write("install.sh", GOOD);
    certified(&lab.certify(SH, TEST));
}

#[test]
fn a_command_writes_into_no_cache_of_the_tests() {
    let lab = lab();
    lab.write("install.sh", &format!("{GOOD}mkdir out; echo 1 > out/kept\n"));
    let commit = lab.site.commit_all("cache");
    let job = format!(
        "job = \"case\"\nrepository = \"repo\"\nbase = \"{commit}\"\n[agent]\ncommand = [\"true\"]\n[certify]\n\
         install = [[\"sh\", \"install.sh\"]]\ntest = [\"python\", \"run.py\", \"{{report}}\"]\ncaches = [\"out\"]\n"
    );
    std::fs::write(lab.site.at("cache.toml"), job).unwrap();
    let args = [
        "certify",
        "--from",
        "cache.toml",
        "--repository",
        "repo",
        "--git",
        &commit,
    ];
    let out = lab.command(&args).output().unwrap();
    assert_eq!(out.status.code(), Some(28), "{}", said(&out));
    assert!(said(&out).contains("out/kept"), "{}", said(&out));
}

/// Writes from outside of every sandbox, while the tests run.
#[test]
fn what_a_command_installed_is_guarded_as_any_other_installation() {
    let lab = lab();
    lab.write(
        "install.sh",
        &format!("{GOOD}mkdir vendor; echo 1 > vendor/data\n"),
    );
    lab.write("run.py", &waiting("import leaf"));
    let liar = Liar::new(lab);
    let leaf = |tree: &Path| {
        let lib = std::fs::read_dir(tree.join(".venv/lib")).unwrap().next().unwrap();
        lib.unwrap().path().join("site-packages/leaf/__init__.py")
    };
    let back = |place: &Path| {
        let held = std::fs::read(place).unwrap();
        std::fs::write(place, "LIMIT = 0\n").unwrap();
        std::fs::write(place, held).unwrap();
    };
    type Act<'a> = &'a dyn Fn(&Path);
    let acts: [(Act<'_>, &str); 7] = [
        (
            &|tree| std::fs::write(leaf(tree), "LIMIT = 9\n").unwrap(),
            "record_mismatch",
        ),
        (&|tree| back(&leaf(tree)), "record_mismatch"),
        (&|tree| back(&tree.join("vendor/data")), "record_mismatch"),
        (
            &|tree| std::fs::write(tree.join("vendor/data"), "2").unwrap(),
            "record_mismatch",
        ),
        (
            &|tree| std::fs::write(tree.join("vendor/more"), "2").unwrap(),
            "record_mismatch",
        ),
        (
            &|tree| std::fs::remove_file(tree.join("vendor/data")).unwrap(),
            "record_mismatch",
        ),
        (
            &|tree| std::fs::write(tree.join("more.txt"), "2").unwrap(),
            "tree_mismatch",
        ),
    ];
    for (act, code) in acts {
        let out = liar.meanwhile(SH, TEST, act);
        assert_eq!(answer(&out)["code"], code, "{}", said(&out));
    }
    assert_eq!(liar.lab.site.passes(), 0);
    certified(&liar.meanwhile(SH, TEST, |_| ()));
}

/// Installers come first; what they installed is none of the command's, and stays what it was.
#[test]
fn a_command_runs_after_the_installers_and_leaves_their_work_alone() {
    let lab = lab();
    let run = |lab: &Lab, script: &str| {
        lab.write("install.sh", script);
        let commit = lab.site.commit_all("both");
        let args = [
            "certify",
            "--job",
            "case",
            "--repository",
            "repo",
            "--git",
            &commit,
        ];
        let args = [&args[..], &["--install", "pip", "--install", SH, "--test", TEST]].concat();
        lab.command(&args).output().unwrap()
    };
    let out = run(&lab, "mkdir vendor; echo 1 > vendor/data\n");
    assert!(out.status.success(), "{}", said(&out));
    let record = record(&answer(&out));
    assert_eq!(record.as_array().unwrap().len(), 2);
    assert_eq!(record[1]["roots"], json!([{"kind": "other", "place": "tree"}]));
    let out = run(
        &lab,
        &format!("mkdir vendor; echo 1 > vendor/data; echo 'LIMIT = 1 ' | tee {LEAF}\n"),
    );
    assert_eq!(answer(&out)["code"], "record_mismatch", "{}", said(&out));
    // Put back, it is what it was, and was another one while the command ran.
    let bent = format!(
        "leaf=$(echo {LEAF})\nmkdir vendor\ncp -p $leaf vendor/d\necho 'LIMIT = 9' > $leaf\ncp -p vendor/d $leaf\n"
    );
    let anew = "rm -r .venv\npython3 -m venv --without-pip .venv\nmkdir vendor; echo 1 > vendor/data\n";
    for (script, named) in [(bent.as_str(), "leaf/__init__.py"), (anew, ".venv/")] {
        let refusal = answer(&run(&lab, script));
        let got = (&refusal["code"], &refusal["reason"]);
        assert_eq!(got, (&json!("record_mismatch"), &json!("touched")), "{refusal}");
        assert!(text(&refusal["names"][0]).contains(named), "{refusal}");
    }
    assert_eq!(lab.site.passes(), 1);
    let args = [
        "certify",
        "--job",
        "case",
        "--repository",
        "repo",
        "--git",
        &lab.site.base,
    ];
    let two = [
        &args[..],
        &["--install", SH, "--install", "sh more.sh", "--test", TEST],
    ]
    .concat();
    let out = lab.command(&two).output().unwrap();
    assert!(said(&out).contains("by one command"), "{}", said(&out));
}

/// A directory may be left more than it had, wherever it lies; and one that is left nothing stays where it stood.
#[test]
fn a_sealed_directory_stands_where_it_stood() {
    let lab = lab();
    for path in ["app/one/a.txt", "app/one/deep/b.txt", "app/two/c.txt"] {
        lab.write(path, path);
    }
    let run = |lab: &Lab, script: &str, backend: &str| {
        lab.write("install.sh", &format!("{GOOD}{script}\n"));
        let commit = lab.site.commit_all("more");
        let args = [
            "certify",
            "--job",
            "case",
            "--repository",
            "repo",
            "--git",
            &commit,
        ];
        let more = ["--install", SH, "--test", TEST, "--backend", backend];
        lab.command(&[&args[..], &more].concat()).output().unwrap()
    };
    let back = "mv app/one/deep away; mkdir app/one/deep; rmdir app/one/deep; mv away app/one/deep";
    let left = "mkdir -p app/one/new/own; echo 1 > app/one/new/own/data.bin";
    for backend in ["dir", "overlay"] {
        let out = run(&lab, left, backend);
        if backend == "overlay" && answer(&out)["reason"] == "backend_unavailable" {
            skipped("an overlay cannot be mounted here");
            continue;
        }
        assert!(out.status.success(), "{backend}: {}", said(&out));
        for (script, named) in [
            (back.to_owned(), "app/one/deep"),
            // What is left elsewhere excuses nothing.
            (format!("{left}; {back}"), "app/one/deep"),
            (format!("{left}; mv app/two x; mv x app/two"), "app/two"),
            ("mkdir app/two/empty".to_owned(), "app/two"),
            ("chmod 700 app/two; chmod 755 app/two".to_owned(), "app/two"),
        ] {
            let refusal = answer(&run(&lab, &script, backend));
            let got = (&refusal["code"], &refusal["reason"]);
            let wanted = (&json!("tree_mismatch"), &json!("touched"));
            assert_eq!(got, wanted, "{backend}: {script}: {refusal}");
            assert!(
                refusal["names"].to_string().contains(named),
                "{backend}: {script}: {refusal}"
            );
        }
    }
}

/// npm, called as a person calls it.
#[test]
fn npm_by_a_command_is_held_against_its_lock() {
    let Some(lab) = crate::vectors::node::project() else {
        return;
    };
    let test = "node run.js {report}";
    let out = lab.certify("npm ci --offline --ignore-scripts", test);
    assert!(out.status.success(), "{}", said(&out));
    let record = record(&answer(&out));
    assert_eq!(record[0]["packages"], json!(["dep==1.0.0"]));
    assert_eq!(
        record[0]["roots"],
        json!([{"kind": "node", "place": "tree/node_modules"}])
    );
    let evil = "mkdir node_modules/evil; echo '{\"name\":\"evil\",\"version\":\"1.0.0\"}' > node_modules/evil/package.json";
    for (more, code) in [
        (evil, "record_mismatch"),
        (
            "mkdir -p node_modules/.bin; printf '#!/bin/sh\\nexit 0\\n' > node_modules/.bin/node; chmod +x node_modules/.bin/node",
            "record_mismatch",
        ),
        ("rm -r node_modules/dep", "record_mismatch"),
        (
            "sed -i s/1.0.0/1.0.1/ node_modules/dep/package.json",
            "record_mismatch",
        ),
        (
            "rm -r node_modules/dep; ln -s /srv/dep node_modules/dep",
            "record_outside_root",
        ),
    ] {
        lab.write(
            "install.sh",
            &format!("set -e\nnpm ci --offline --ignore-scripts\n{more}\n"),
        );
        let out = lab.certify(SH, test);
        assert_eq!(answer(&out)["code"], code, "{more}: {}", said(&out));
    }
}

/// uv, called as a person calls it: its cache lies in a HOME that is freed, so nothing keeps a second name.
#[test]
fn uv_by_a_command_leaves_no_second_name() {
    let lab = lab();
    if lab.uv.is_none() {
        skipped("uv is not on this machine");
        return;
    }
    let sync = "uv pip sync --quiet --no-index --find-links wheels --require-hashes requirements.txt";
    lab.write("install.sh", &format!("set -e\nuv venv --quiet\n{sync}\n"));
    // A script finds nothing of the operator's but Python and Node.
    let out = lab.certify(SH, TEST);
    assert_eq!(answer(&out)["code"], "install_failed", "{}", said(&out));
    let out = lab.certify("uv sync --frozen", TEST);
    assert_eq!(answer(&out)["code"], "install_failed", "{}", said(&out));
    lab.write("pyproject.toml", "[project]\nname = \"app\"\nversion = \"0\"\nrequires-python = \">=3.9\"\ndependencies = [\"leaf==1.0\"]\n");
    std::fs::remove_file(lab.site.repository().join("requirements.txt")).unwrap();
    lab.uv(&["lock"]);
    let out = lab.certify("uv sync --frozen --no-install-project", TEST);
    assert!(out.status.success(), "{}", said(&out));
    let record = record(&answer(&out));
    assert_eq!(record[0]["packages"], json!(["leaf==1.0"]));
    assert!(record[0]["locks"]["uv.lock"].is_string());
    let dir = ["--backend", "dir"];
    let commit = lab.site.git(&["rev-parse", "HEAD"]);
    let args = [
        "certify",
        "--job",
        "case",
        "--repository",
        "repo",
        "--git",
        &commit,
        "--test",
        TEST,
    ];
    let args = [&args[..], &["--install", "uv sync --frozen"], &dir].concat();
    let out = lab.command(&args).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
}
