//! Which paths can change what the tests say, by their names alone.

use semel_core::RelPath;

/// Names of files that runners, builds and package managers read.
const CONFIGURATION: [&[u8]; 72] = [
    b"conftest.py",
    b"pytest.ini",
    b".pytest.ini",
    b"pytest.toml",
    b".pytest.toml",
    b"tests.py",
    b"test.py",
    b"uv.toml",
    b".python-version",
    b"nextest.toml",
    b".taprc",
    b"rust-toolchain",
    b"rust-toolchain.toml",
    b"GNUmakefile",
    b"makefile",
    b"tox.ini",
    b"setup.cfg",
    b"setup.py",
    b"pyproject.toml",
    b"noxfile.py",
    b"sitecustomize.py",
    b"usercustomize.py",
    b"package.json",
    b".npmrc",
    b"Cargo.toml",
    b"build.rs",
    b"Makefile",
    b"justfile",
    b".coveragerc",
    b"tests.rs",
    b"test.rs",
    b"hatch.toml",
    b"tox.toml",
    b"poetry.toml",
    b"pdm.toml",
    b"pip.conf",
    b"pnpm-workspace.yaml",
    b".pnpmfile.cjs",
    b".pnpmfile.mjs",
    b"pnpmfile.js",
    b".yarnrc",
    b".yarnrc.yml",
    b".yarnrc.yaml",
    b".pnp.cjs",
    b".pnp.loader.mjs",
    b"bunfig.toml",
    b"deno.json",
    b"deno.jsonc",
    b".swcrc",
    b".babelrc",
    b".c8rc",
    b".c8rc.json",
    b".nycrc",
    b".nycrc.json",
    b"clippy.toml",
    b"lerna.json",
    b"node.config.json",
    b".rspec",
    b".rspec-local",
    b"behave.ini",
    b".behaverc",
    b"cucumber.cjs",
    b"cucumber.js",
    b"cucumber.json",
    b"cucumber.mjs",
    b"cucumber.yaml",
    b"cucumber.yml",
    b"phpunit.xml",
    b"phpunit.xml.dist",
    b"phpunit.dist.xml",
    b"Rakefile",
    b"go.work",
];
/// Names of directories in which tests and what they read lie, in lower case.
const DIRECTORIES: [&[u8]; 11] = [
    b"test",
    b"tests",
    b"__tests__",
    b"spec",
    b"specs",
    b".cargo",
    b"__mocks__",
    b"__snapshots__",
    b"__fixtures__",
    b"e2e",
    b"cypress",
];
/// What stands in the name of a file of tests, or of the configuration or setup of a runner.
const MARKS: [&[u8]; 23] = [
    b"_test.",
    b"-test.",
    b".test.",
    b".spec.",
    b"_spec.",
    b"jest.config.",
    b"jest.setup.",
    b"jest.preset.",
    b"vitest.config.",
    b"vitest.setup.",
    b"vitest.workspace.",
    b"vite.config.",
    b"setupTests.",
    b"mocharc",
    b"babel.config.",
    b"ava.config.",
    b"karma.conf.",
    b"playwright.config.",
    b"cypress.config.",
    b"tsconfig.",
    b"nyc.config.",
    b".babelrc.",
    b"test.setup.",
];

/// Says whether a path can change what the tests say: tests, fixtures, configuration of runners and builds.
///
/// All that `node --test` runs where it is told no file is among them.
pub(super) fn concerns_tests(path: &RelPath) -> bool {
    let Some((parent, name)) = path.split_last() else {
        return false;
    };
    let listed = |part: &[u8]| DIRECTORIES.contains(&part.to_ascii_lowercase().as_slice());
    CONFIGURATION.contains(&name)
        || parent.components().any(listed)
        || name.starts_with(b"test_")
        || MARKS
            .iter()
            .any(|mark| name.windows(mark.len()).any(|window| window == *mark))
        || run_by_node(name)
        || name.ends_with(b".pth")
}

/// `test.js` and `test-*.js`, of every extension of a module.
fn run_by_node(name: &[u8]) -> bool {
    let modules: [&[u8]; 8] = [
        b".js", b".cjs", b".mjs", b".ts", b".cts", b".mts", b".jsx", b".tsx",
    ];
    let stem = modules.iter().find_map(|end| name.strip_suffix(*end));
    stem.is_some_and(|stem| stem == b"test" || stem.starts_with(b"test-"))
}

#[cfg(test)]
mod tests {
    use super::super::surface::{modules, stands_for};
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_can_change_the_tests_is_known_by_its_path() {
        for yes in [
            "tests/a.txt",
            "conftest.py",
            "a/conftest.py",
            "pytest.toml",
            "app/tests.py",
            "rust-toolchain.toml",
            ".config/nextest.toml",
            "babel.config.js",
            "src/x_test.go",
            "a.test.ts",
            ".cargo/config.toml",
            "test.js",
            "test.mjs",
            "src/add-test.js",
            "test-add.cts",
            "add_test.js",
            "vite.config.ts",
            "vitest.setup.ts",
            "jest.setup.js",
            "__mocks__/fs.js",
            "e2e/login.js",
            "src/tests.rs",
            "Tests/a.py",
            "pnpm-workspace.yaml",
            ".yarnrc.yml",
            ".pnpmfile.cjs",
            "hatch.toml",
            ".rspec",
            "node.config.json",
        ] {
            assert!(concerns_tests(&path(yes)), "{yes}");
        }
        for no in [
            "src/lib.rs",
            "README.md",
            "contest.py",
            "docs/testing.md",
            "latest.js",
            "test-plan.md",
            "src/contest.js",
        ] {
            assert!(!concerns_tests(&path(no)), "{no}");
        }
    }

    #[test]
    fn a_module_at_the_root_stands_for_the_runner_of_its_name() {
        let runners = modules(&[]);
        for yes in [
            "pytest.py",
            "pytest/__init__.py",
            "_pytest/__main__.py",
            "pluggy.cpython-311-x86_64-linux-gnu.so",
        ] {
            assert!(stands_for(&path(yes), &runners), "{yes}");
        }
        for no in [
            "app.py",
            "src/pytest.py",
            "pytest/data.txt",
            "pytest.ini",
            "pytest.md",
        ] {
            assert!(!stands_for(&path(no), &runners), "{no}");
        }
    }
}
