//! What holds for single formats: equality with the manifest, sources, and what each tool does in its own way.

use super::*;

/// Gives the fixture of a format, the n-th one of it.
fn sample(name: &str, nth: usize) -> (String, Declared) {
    let (_, text, declared) = every_format()
        .into_iter()
        .filter(|(n, _, _)| *n == name)
        .nth(nth)
        .unwrap();
    (text.to_owned(), declared)
}

fn with(declared: &Declared, path: &str, from: &str, to: &str) -> Declared {
    let mut all = declared.clone();
    let text = String::from_utf8(all.texts[&at(path)].clone()).unwrap();
    all.texts.insert(at(path), edit(&text, from, to).into_bytes());
    all
}

#[rustfmt::skip]
const CHANGED: &[(&str, usize, &str, &str, &str, &str)] = &[
    ("poetry.lock", 0, "pyproject.toml", "six>=1.16,<2", "six>=1.17,<2", "pyproject.toml gives"),
    ("poetry.lock", 0, "pyproject.toml", "^2.0", "^2.1", "pyproject.toml gives"),
    ("poetry.lock", 0, "pyproject.toml", "idna>=3", "idna>=2", "pyproject.toml gives"),
    ("poetry.lock", 0, "pyproject.toml", "index.example", "other.example", "pyproject.toml gives"),
    ("pdm.lock", 0, "pyproject.toml", "six>=1.16,<2", "six>=1.17,<2", "pyproject.toml gives"),
    ("pdm.lock", 0, "pyproject.toml", "iniconfig>=2", "iniconfig>=1", "pyproject.toml gives"),
    ("pdm.lock", 0, "pyproject.toml", ">=3.11", ">=3.12", "pyproject.toml gives"),
    ("pylock.toml", 0, "pyproject.toml", "six>=1.16,<2", "ruff", "ruff"),
    ("pylock.toml", 1, "pyproject.toml", "six>=1.16,<2", "ruff", "ruff"),
    ("Pipfile.lock", 0, "Pipfile", ">=1.16,<2", ">=1.17,<2", "Pipfile gives"),
    ("Pipfile.lock", 0, "Pipfile", "3.11", "3.12", "Pipfile gives"),
    ("pnpm-lock.yaml", 0, "package.json", "^2.1.3", "^2.1.2", "declared ms@^2.1.2"),
    ("pnpm-lock.yaml", 0, "package.json", "devDependencies", "other", "locked dev semver"),
    ("pnpm-lock.yaml", 0, "package.json", "optionalDependencies", "peerDependencies", "locked optional fsevents"),
    ("pnpm-lock.yaml", 1, "packages/b/package.json", "3.0.1", "3.0.0", "declared is-odd@3.0.0"),
    ("yarn.lock", 0, "package.json", "^2.1.3", "^2.1.2", "ms@^2.1.2"),
    ("yarn.lock", 0, "package.json", "\"ms\":\"^2.1.3\",", "", "ms==2.1.3"),
    ("yarn.lock", 1, "package.json", "^2.1.3", "^2.1.2", "declared ms@^2.1.2"),
    ("yarn.lock", 1, "package.json", "optionalDependencies", "other", "locked optional @esbuild/"),
    ("yarn.lock", 1, "packages/b/package.json", "\"*\"", "\"2\"", "declared ms@2"),
    ("yarn.lock", 1, "packages/b/package.json", "^1.1.1", "^1.1.0", "declared picocolors@^1.1.0"),
    ("go.sum", 0, "go.mod", "pflag v1.0.5", "pflag v1.0.6", "github.com/spf13/pflag v1.0.6"),
    ("Gemfile.lock", 0, "Gemfile", "gem \"rb_sys\"", "gem 'fiddle'", "fiddle"),
    ("Gemfile.lock", 0, "Gemfile", "gem \"rb_sys\"\n", "", "locked rb_sys"),
    ("composer.lock", 0, "composer.json", "^3.0\"", "^3.1\"", "composer.json gives"),
    ("composer.lock", 0, "composer.json", "8.2.0", "8.3.0", "composer.json gives"),
    ("composer.lock", 0, "composer.json", "1.5", "1.25", "composer.json gives"),
];

/// Each change of the manifest, after the lock was written, is refused and named.
#[test]
fn a_lock_that_differs_from_its_manifest_is_refused() {
    for &(name, nth, path, from, to, part) in CHANGED {
        let (text, declared) = sample(name, nth);
        refused(name, &text, &with(&declared, path, from, to), part);
    }
    for (name, _, _) in every_format() {
        let (text, _) = sample(name, 0);
        if !["requirements.txt", "pylock.toml"].contains(&name) {
            let refusal = check(name, text.as_bytes(), &Declared::default()).unwrap_err();
            assert!(refusal.why.contains("no manifest"), "{name}: {refusal}");
        }
    }
}

/// What no manager counts does not count here either.
#[test]
fn what_a_digest_leaves_out_may_change() {
    for (name, path, from, to) in [
        (
            "poetry.lock",
            "pyproject.toml",
            "version = \"0.1.0\"",
            "version = \"0.2.0\"",
        ),
        (
            "poetry.lock",
            "pyproject.toml",
            "poetry-core>=2",
            "poetry-core>=1",
        ),
        (
            "pdm.lock",
            "pyproject.toml",
            "version = \"0.1.0\"",
            "version = \"0.2.0\"",
        ),
        ("composer.lock", "composer.json", "A probe", "Another"),
        ("Gemfile.lock", "Gemfile", "frozen", "thawed"),
        ("go.sum", "go.mod", "go 1.15", "go 1.25.0\n\ntoolchain go1.25.1"),
    ] {
        let (text, declared) = sample(name, 0);
        check(name, text.as_bytes(), &with(&declared, path, from, to)).unwrap();
    }
}

const PYTHON: &str = "name = \"six\"\nversion = \"1.17.0\"";
const SWAPPED: &str = "name = \"six\"\nversion = \"1.16.0\"";

#[rustfmt::skip]
const UNBOUND: &[(&str, usize, &str, &str, &str)] = &[
    ("uv.lock", 0, PYTHON, SWAPPED, "six 1.16.0"),
    ("uv.lock", 0, "six-1.17.0-py2", "sax-1.17.0-py2", "six 1.17.0"),
    ("poetry.lock", 0, PYTHON, SWAPPED, "six 1.16.0"),
    ("poetry.lock", 0, "type = \"legacy\"", "type = \"git\"", "certifi"),
    ("poetry.lock", 0, "hpack = ", "hpax = ", "hpax of h2"),
    ("poetry.lock", 0, "lock-version = \"2.1\"", "lock-version = \"3.0\"", "3.0"),
    ("poetry.lock", 0, "hash = \"sha256:", "hash = \"md5:", "certifi"),
    ("poetry.lock", 0, "{file = \"h11-0.16.0-py3", "{file = \"h12-0.16.0-py3", "h11 0.16.0"),
    ("poetry.lock", 0, "name = \"h2\"", "name = \"h3\"", "h3 4.4.1"),
    ("pdm.lock", 0, PYTHON, SWAPPED, "six 1.16.0"),
    ("pdm.lock", 0, "\"hpack<5", "\"hpax<5", "hpax of h2"),
    ("pdm.lock", 0, "extras = [\"http2\"]", "extras = [\"http3\"]", "httpcore[http2]"),
    ("pdm.lock", 0, "groups = [\"default\", \"dev\"", "groups = [\"default\", \"test\"", "iniconfig"),
    ("pdm.lock", 0, "lock_version = \"4.5.0\"", "lock_version = \"5.0\"", "5.0"),
    ("pylock.toml", 0, PYTHON, SWAPPED, "six 1.16.0"),
    ("pylock.toml", 0, "{ sha256 = \"1324", "{ md5 = \"1324", "certifi"),
    ("pylock.toml", 1, "path = \".\"", "path = \"../other\"", "demo (no version)"),
    ("pylock.toml", 1, "path = \".\"", "path = \"/srv/demo\"", "demo (no version)"),
    ("Pipfile.lock", 0, "\"==1.17.0\"", "\"*\"", "six of default"),
    ("Pipfile.lock", 0, "\"sha256:47", "\"sha256:g7", "six of default"),
    ("Pipfile.lock", 0, "\"index\": \"pypi\"", "\"git\": \"https://x.test/a.git\"", "six of default"),
    ("Pipfile.lock", 0, "\"six\": {", "\"seven\": {", "six"),
    ("pnpm-lock.yaml", 0, "{integrity: sha512-Aup7", "{tarball: https://x.test/a.tgz, other: sha512-Aup7", "line 31"),
    ("pnpm-lock.yaml", 0, "sha512-Aup7", "sha512-Aup", "line 31"),
    ("pnpm-lock.yaml", 0, "      is-number: 6.0.0", "      is-number: 7.0.0", "is-number@7.0.0 of is-odd==3.0.1"),
    ("pnpm-lock.yaml", 0, "version: 2.1.3", "version: 2.1.4", "ms@2.1.4 of the project"),
    ("pnpm-lock.yaml", 0, "lockfileVersion: '9.0'", "lockfileVersion: '5.4'", "5.4"),
    ("pnpm-lock.yaml", 1, "link:../b", "link:../../../b", "b"),
    ("yarn.lock", 0, "version \"6.0.0\"", "version \"5.0.0\"", "is-number"),
    ("yarn.lock", 0, "is-number \"^6.0.0\"", "is-number \"^7.0.0\"", "is-number@^7.0.0 of is-odd"),
    ("yarn.lock", 0, "resolved \"https://registry.yarnpkg.com/ms/-/ms-2.1.3.tgz", "resolved \"git+https://x.test/ms.git", "ms@^2.1.3"),
    ("yarn.lock", 1, "version: 6.0.0", "version: 5.0.0", "is-number"),
    ("yarn.lock", 1, "is-number: \"npm:^6.0.0\"", "is-number: \"npm:^7.0.0\"", "is-number@npm:^7.0.0 of is-odd"),
    ("yarn.lock", 1, "  checksum: 10c0/5da4", "  other: 10c0/5da4", "is-number"),
    ("yarn.lock", 1, "checksum: 10c0/5da4", "checksum: 10c0/5da", "is-number"),
    ("yarn.lock", 1, "version: 10\n", "version: 99\n", "99"),
    ("yarn.lock", 1, "workspace:packages/b\"\n  dep", "workspace:../b\"\n  dep", "b@workspace"),
    ("go.sum", 0, "h1:qMCs", "h2:qMCs", "line 1: github.com/cpuguy83/go-md2man/v2"),
    ("go.sum", 0, "h1:qMCs", "h1:qMC", "line 1"),
    ("go.sum", 0, " h1:qMCs", "  h1:qMCs", "line 1"),
    ("Gemfile.lock", 0, "  tilt (2.3.0) sha256=82dd903d61213c63679d28e404ee8e10d1b0fdf5270f1ad0898ec314cc3e745c\n", "", "tilt (2.3.0)"),
    ("Gemfile.lock", 0, "  tilt (2.3.0) sha256=82", "  tilt (2.3.0) sha256=8", "tilt (2.3.0)"),
    ("Gemfile.lock", 0, "tilt (~> 2.0)", "tilp (~> 2.0)", "tilp of sinatra"),
    ("Gemfile.lock", 0, "GEM\n", "GIT\n", "GIT"),
    ("composer.lock", 0, "\"psr/log\": \"^2", "\"psr/lag\": \"^2", "psr/lag of monolog/monolog"),
    ("composer.lock", 0, "0123456789abcdef", "0123", "sebastian/version"),
    ("composer.lock", 0, "\"type\": \"zip\"", "\"kind\": \"zip\"", "monolog/monolog"),
];

/// Sources that no hash binds, versions and hashes that are not what they seem.
#[test]
fn a_lock_that_does_not_bind_is_refused_by_the_package() {
    for &(name, nth, from, to, part) in UNBOUND {
        let (text, declared) = sample(name, nth);
        refused(name, &edit(&text, from, to), &declared, part);
    }
}

/// What a lock has and nobody asks for is as wrong as what it lacks.
#[test]
fn a_package_that_nothing_asks_for_is_refused() {
    for (name, nth, block) in [
        (
            "poetry.lock",
            0,
            "[[package]]\nname = \"zzz\"\nversion = \"1.0\"\noptional = false\nfiles = [{file = \"zzz-1.0.tar.gz\", hash = \"sha256:ff70335d468e7eb6ec65b95b99d3a2836546063f63acc5171de367e834932a81\"}]\n\n[extras]",
        ),
        (
            "pdm.lock",
            0,
            "[[package]]\nname = \"zzz\"\nversion = \"1.0\"\nfiles = [{file = \"zzz-1.0.tar.gz\", hash = \"sha256:ff70335d468e7eb6ec65b95b99d3a2836546063f63acc5171de367e834932a81\"}]\n\n[[package]]\nname = \"six\"\n",
        ),
        ("Gemfile.lock", 0, "    zzz (1.0)\n\nPLATFORMS"),
        (
            "composer.lock",
            0,
            "{\"name\": \"a/zzz\", \"version\": \"1\", \"dist\": {\"type\": \"zip\", \"url\": \"u\"}},\n        {\n            \"name\": \"psr/log\"",
        ),
        (
            "yarn.lock",
            0,
            "zzz@^1:\n  version \"1.0.0\"\n  integrity sha512-6FlzubTLZG3J2a/NVCAleEhjzq5oxgHyaCU9yYXvcLsvoVaHJq/s5xXI6/XXP6tz7R9xAOtHnSO/tXtF3WRTlA==\n\nsemver@^7.6.0:",
        ),
        (
            "yarn.lock",
            1,
            "\"zzz@npm:^1\":\n  version: 1.0.0\n  resolution: \"zzz@npm:1.0.0\"\n  conditions: os=darwin\n  languageName: node\n  linkType: hard\n\n\"semver@npm:^7.6.0\":",
        ),
    ] {
        let (text, declared) = sample(name, nth);
        let end = match name {
            "Gemfile.lock" => "\nPLATFORMS",
            "composer.lock" => "{\n            \"name\": \"psr/log\"",
            "poetry.lock" => "[extras]",
            "pdm.lock" => "[[package]]\nname = \"six\"\n",
            "yarn.lock" if nth == 0 => "semver@^7.6.0:",
            _ => "\"semver@npm:^7.6.0\":",
        };
        let mut text = edit(&text, end, block);
        if name == "Gemfile.lock" {
            let sum = "  zzz (1.0) sha256=82dd903d61213c63679d28e404ee8e10d1b0fdf5270f1ad0898ec314cc3e745c\n\nBUNDLED";
            text = edit(&text, "\nBUNDLED", sum);
        }
        refused(name, &text, &declared, "zzz");
    }
}

/// An edge with a marker may lead nowhere where the marker holds for no Python of the lock, and only there.
#[test]
fn a_marker_excuses_only_what_can_never_be() {
    let (text, declared) = sample("poetry.lock", 0);
    let edge = |marker: &str| format!("certifi = \"*\"\ntomli = {{version = \"*\", markers = \"{marker}\"}}");
    let never = edit(&text, "certifi = \"*\"", &edge("python_version < \\\"3.11\\\""));
    check("poetry.lock", never.as_bytes(), &declared).unwrap();
    for marker in [
        "python_version < \\\"3.12\\\"",
        "sys_platform == \\\"win32\\\"",
        "nonsense",
    ] {
        let text = edit(&text, "certifi = \"*\"", &edge(marker));
        refused("poetry.lock", &text, &declared, "tomli of httpcore");
    }
    let (text, declared) = sample("pdm.lock", 0);
    let never = edit(
        &text,
        "\"certifi\",",
        "\"certifi\",\n    \"tomli; python_version < '3.11'\",",
    );
    check("pdm.lock", never.as_bytes(), &declared).unwrap();
    let may = edit(
        &text,
        "\"certifi\",",
        "\"certifi\",\n    \"tomli; python_version < '3.12'\",",
    );
    refused("pdm.lock", &may, &declared, "tomli of httpcore");
}

/// What is chosen and what is for a platform: the scopes and conditions that each format writes.
#[test]
fn scopes_and_conditions_are_those_of_the_lock() {
    let certain = |name: &str, nth: usize, groups: &[&str]| -> Vec<String> {
        let (text, _) = sample(name, nth);
        let lock = parse(&at(name), text.as_bytes()).unwrap();
        let selection = Selection {
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            ..Selection::default()
        };
        lock.must_be_installed(&selection)
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    let main = ["certifi", "h11", "h2", "hpack", "httpcore", "hyperframe", "six"];
    assert_eq!(certain("poetry.lock", 0, &[]), main);
    assert!(certain("poetry.lock", 0, &["dev"]).contains(&"iniconfig".to_owned()));
    assert_eq!(certain("pdm.lock", 0, &[]), main);
    assert_eq!(certain("Pipfile.lock", 0, &["develop"]), Vec::<String>::new());
    let odd = [
        "@babel/code-frame",
        "@babel/helper-validator-identifier",
        "is-number",
        "is-odd",
        "js-tokens",
        "ms",
        "picocolors",
    ];
    assert_eq!(certain("pnpm-lock.yaml", 0, &[]), odd);
    assert!(certain("pnpm-lock.yaml", 0, &["dev"]).contains(&"semver".to_owned()));
    assert_eq!(certain("composer.lock", 0, &[]), ["monolog/monolog", "psr/log"]);
    let left_out = |name: &str, nth: usize, setting: &Setting| -> Vec<String> {
        let (text, _) = sample(name, nth);
        let lock = parse(&at(name), text.as_bytes()).unwrap();
        let not = lock.packages.iter().filter(|p| setting.takes(p) == Holds::No);
        not.map(|p| p.name.clone()).collect()
    };
    let python = Setting::linux("x86_64", [3, 11, 7]);
    assert_eq!(left_out("poetry.lock", 0, &python), ["pywin32-ctypes"]);
    assert_eq!(left_out("pdm.lock", 0, &python), ["colorama"]);
    assert_eq!(left_out("pylock.toml", 0, &python), ["colorama"]);
    let node = Setting::node("x64", "glibc");
    assert_eq!(left_out("pnpm-lock.yaml", 0, &node), ["fsevents"]);
    assert_eq!(left_out("package-lock.json", 0, &node), ["fsevents"]);
    assert_eq!(left_out("yarn.lock", 1, &node), ["@esbuild/darwin-arm64"]);
}

/// What a format binds by no hash is named, and refused for an installer that the job names.
#[test]
fn what_no_hash_binds_is_named() {
    let (text, declared) = sample("yarn.lock", 1);
    let lock = parse(&at("yarn.lock"), text.as_bytes()).unwrap();
    assert_eq!(
        lock.unbound,
        ["@esbuild/darwin-arm64==0.21.5", "@esbuild/linux-x64==0.21.5"]
    );
    assert_eq!(lock.weak.len(), 1);
    let refusal = require_hashes(&lock).unwrap_err();
    assert!(
        refusal.names.contains(&"@esbuild/linux-x64==0.21.5".to_owned()),
        "{refusal}"
    );
    close_over(&lock, &declared).unwrap();

    let (text, declared) = sample("Gemfile.lock", 0);
    let from = text.find("CHECKSUMS").unwrap();
    let to = text.find("BUNDLED").unwrap();
    let bare = format!("{}{}", &text[..from], &text[to..]);
    let weak = check("Gemfile.lock", bare.as_bytes(), &declared).unwrap();
    assert!(weak[0].contains(weak::GEMFILE), "{weak:?}");
    let computed = with(
        &declared,
        "Gemfile",
        "gem \"rb_sys\"",
        "gem \"rb_sys\" if ENV[\"X\"]",
    );
    assert!(check("Gemfile.lock", text.as_bytes(), &computed).unwrap()[0].contains("computed"));
}

#[test]
fn go_follows_what_is_replaced() {
    let (text, declared) = sample("go.sum", 0);
    let go = |more: &str| with(&declared, "go.mod", "go 1.15\n", &format!("go 1.15\n\n{more}\n"));
    let local = go("replace github.com/spf13/pflag => ./pflag");
    let without: String = text
        .lines()
        .filter(|l| !l.contains("pflag"))
        .map(|l| format!("{l}\n"))
        .collect();
    check("go.sum", without.as_bytes(), &local).unwrap();
    refused("go.sum", &without, &declared, "pflag v1.0.5");
    refused(
        "go.sum",
        &text,
        &go("replace github.com/spf13/pflag => ../pflag"),
        "pflag",
    );
    refused(
        "go.sum",
        &text,
        &go("replace github.com/spf13/pflag v1.0.5 => x.test/pflag v1.0.9"),
        "x.test/pflag v1.0.9",
    );
    refused("go.sum", &text, &go("require x.test/a"), "go.mod line 5");
    let indirect = go("require gopkg.in/check.v1 v0.0.0-20161208181325-20d25e280405 // indirect");
    check("go.sum", text.as_bytes(), &indirect).unwrap();
}

/// Yarn and Composer let the project speak for what its packages ask for.
#[test]
fn a_project_may_speak_for_its_packages() {
    let (text, declared) = sample("yarn.lock", 0);
    let other = edit(&text, "is-number@^6.0.0:", "is-number@6.0.0:");
    refused("yarn.lock", &other, &declared, "is-number@^6.0.0 of is-odd");
    let by_hand = with(
        &declared,
        "package.json",
        "\"private\":true",
        "\"resolutions\":{\"**/is-number\":\"6.0.0\"}",
    );
    check("yarn.lock", other.as_bytes(), &by_hand).unwrap();
}

/// Poetry counts dependency groups since 2.3; what an older one wrote may have left them out.
#[test]
fn an_older_poetry_left_groups_out_of_its_digest() {
    let (text, declared) = sample("poetry.lock", 0);
    let grouped = with(
        &declared,
        "pyproject.toml",
        "[tool.poetry]\n",
        "[dependency-groups]\nmore = [\"h11\"]\n\n[tool.poetry]\n",
    );
    refused("poetry.lock", &text, &grouped, "pyproject.toml gives");
    let old = edit(&text, "Poetry 2.5.1", "Poetry 2.2.1");
    check("poetry.lock", old.as_bytes(), &grouped).unwrap();
}

/// The last entry of a pnpm lock may be the beginning of a longer one, whatever it looks like now.
#[test]
fn an_entry_that_may_go_on_is_named_as_weak() {
    let (text, declared) = sample("pnpm-lock.yaml", 1);
    let more = text
        .replace("  semver@7.8.6: {}\n", "")
        .replace(
            "  is-number@6.0.0: {}\n",
            "  is-number@6.0.0: {}\n\n  semver@7.8.6: {}\n",
        )
        .replace(
            "  scheduler@0.23.2:\n    dependencies:\n      loose-envify: 1.4.0\n\n",
            "",
        )
        .trim_end()
        .to_owned();
    let long = format!(
        "{more}\n\n  scheduler@0.23.2:\n    dependencies:\n      loose-envify: 1.4.0\n      react: 18.2.0\n"
    );
    let short = long.replace("1.4.0\n      react: 18.2.0\n", "1.4.0\n");
    let short = format!("{}\n", short.trim_end());
    for text in [&long, &short] {
        let weak = check("pnpm-lock.yaml", text.as_bytes(), &declared);
        if text == &long {
            assert!(weak.as_ref().is_ok_and(|w| w[0].contains(weak::PNPM)), "{weak:?}");
        }
        assert!(
            weak.as_ref()
                .map_or(true, |w| w.iter().any(|w| w.contains(weak::PNPM))),
            "{weak:?}"
        );
    }
}

/// PDM may lock a group by what another one includes, and an extra that the project asks of itself.
#[test]
fn groups_that_include_others_are_followed() {
    let (text, _) = sample("pdm.lock", 0);
    let start = text.find("groups = [\"default\"").unwrap();
    let end = text[start..].find('\n').unwrap() + start;
    let text = format!(
        "{}groups = [\"default\", \"all\", \"dev\"]{}",
        &text[..start],
        &text[end..]
    );
    let manifest = PDM_PYPROJECT
        .replace("net = [", "all = [\"demo[net]\"]\nnet = [")
        .replace(
            "dev = [\"iniconfig>=2\"]",
            "dev = [{ include-group = \"lint\" }]\nlint = [\"iniconfig>=2\"]",
        );
    let refusal = check(
        "pdm.lock",
        text.as_bytes(),
        &declared(&[("pyproject.toml", &manifest)]),
    )
    .unwrap_err();
    let gives = refusal
        .names
        .iter()
        .find_map(|n| n.strip_prefix("pyproject.toml gives "))
        .unwrap()
        .to_owned();
    let at = text.find("sha256:").unwrap() + 7;
    let text = format!("{}{gives}{}", &text[..at], &text[at + 64..]);
    let weak = check(
        "pdm.lock",
        text.as_bytes(),
        &declared(&[("pyproject.toml", &manifest)]),
    )
    .unwrap();
    assert_eq!(weak, Vec::<String>::new());
    let cut = text.find("[[package]]\nname = \"iniconfig\"").unwrap();
    let six = text.find("[[package]]\nname = \"six\"").unwrap();
    let cut = format!("{}{}", &text[..cut], &text[six..]);
    refused(
        "pdm.lock",
        &cut,
        &declared(&[("pyproject.toml", &manifest)]),
        "iniconfig",
    );
}

#[test]
fn requirements_that_include_themselves_are_refused() {
    let idna = format!("idna==3.10 --hash=sha256:{}\n", "ab".repeat(32));
    let file = |includes: &str| format!("{includes}{idna}");
    let (a, b, c) = ("requirements.txt", "requirements-b.txt", "requirements-c.txt");
    let cycles: [&[(&str, &str)]; 4] = [
        &[(a, "-r requirements.txt\n")],
        &[(a, "-c requirements.txt\n")],
        &[(a, "-r requirements-b.txt\n"), (b, "-r requirements.txt\n")],
        &[
            (a, "-r requirements-b.txt\n"),
            (b, "-r requirements-c.txt\n"),
            (c, "-r ./requirements-b.txt\n"),
        ],
    ];
    for files in cycles {
        let texts: Vec<(&str, String)> = files.iter().map(|(name, text)| (*name, file(text))).collect();
        let all: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (*name, text.as_str())).collect();
        refused(a, all[0].1, &declared(&all), "requirements");
        let lock = parse(&RelPath::parse(a.as_bytes()).unwrap(), all[0].1.as_bytes()).unwrap();
        let why = included(&lock, &declared(&all)).unwrap_err();
        assert!(why.why.contains("includes itself"), "{why}");
    }
    // The same file by two ways is none, and counts once.
    let texts = [
        (a, file("-r requirements-b.txt\n-r requirements-c.txt\n")),
        (b, file("-r requirements-d.txt\n")),
        (c, file("-r requirements-d.txt\n")),
        ("requirements-d.txt", file("")),
    ];
    let all: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let lock = parse(&RelPath::parse(a.as_bytes()).unwrap(), all[0].1.as_bytes()).unwrap();
    assert_eq!(included(&lock, &declared(&all)).unwrap().len(), 3);
}

#[test]
fn what_npm_takes_for_a_repository_or_a_directory_never_gets_there() {
    let integrity = "\"integrity\": \"sha512-6Flz";
    let with = |from: &str| {
        edit(
            PACKAGE_LOCK,
            integrity,
            &format!("\"resolved\": \"{from}\",\n      {integrity}"),
        )
    };
    let lock = RelPath::parse(b"package-lock.json").unwrap();
    assert!(parse(&lock, with("https://host/ms/-/ms-2.1.3.tgz").as_bytes()).is_ok());
    for other in [
        "user/repo-1.0.0",
        "ssh://git@host/ms.tgz",
        "github:user/repo",
        "bitbucket:user/repo",
        "https://github.com/user/repo",
        "file:vendor/ms",
    ] {
        let refusal = parse(&lock, with(other).as_bytes()).unwrap_err();
        assert_eq!(refusal.code, Code::LockIncomplete, "{other}");
        assert!(refusal.names.iter().any(|name| name == other), "{refusal}");
    }
}
