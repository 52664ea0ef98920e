//! What tools take from around a tree: files of the directories above it, and variables that name caches.
//!
//! It looks at no disk. A certification sees neither: a mount namespace hides the directories above, and where there is
//! none, what lies in them is refused by name.

/// Names in a directory above a tree that an installer, a test runner or a toolchain reads unasked.
pub const ABOVE: [&str; 34] = [
    ".cargo/config",
    ".cargo/config.toml",
    "Cargo.toml",
    "rust-toolchain",
    "rust-toolchain.toml",
    ".npmrc",
    "package.json",
    "node_modules",
    "pnpm-workspace.yaml",
    ".pnpmfile.cjs",
    ".yarnrc",
    ".yarnrc.yml",
    ".pnp.cjs",
    "tsconfig.json",
    "babel.config.js",
    "jest.config.js",
    "vitest.config.ts",
    "pyproject.toml",
    "uv.toml",
    "poetry.toml",
    "setup.cfg",
    "pytest.ini",
    "tox.ini",
    "conftest.py",
    "pip.conf",
    ".python-version",
    ".venv",
    ".nvmrc",
    ".node-version",
    ".tool-versions",
    "mise.toml",
    ".env",
    ".git",
    "go.work",
];

/// Variables that name a place in which a tool keeps what it may use again.
const CACHES: [&str; 22] = [
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
    "UV_CACHE_DIR",
    "UV_TOOL_DIR",
    "PIP_CACHE_DIR",
    "PIP_FIND_LINKS",
    "PIP_TARGET",
    "POETRY_CACHE_DIR",
    "POETRY_VIRTUALENVS_PATH",
    "PYTHONPYCACHEPREFIX",
    "CARGO_HOME",
    "CARGO_TARGET_DIR",
    "SCCACHE_DIR",
    "CCACHE_DIR",
    "npm_config_cache",
    "npm_config_store_dir",
    "YARN_CACHE_FOLDER",
    "YARN_GLOBAL_FOLDER",
    "PNPM_HOME",
    "GOCACHE",
    "GOMODCACHE",
];

/// Variables that say from where code is loaded before or instead of what is installed.
const LOADERS: [&str; 21] = [
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "NODE_PATH",
    "NODE_OPTIONS",
    "LD_PRELOAD",
    "LD_AUDIT",
    "PERL5LIB",
    "RUBYLIB",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTDOC",
    "RUSTDOC",
    "LD_LIBRARY_PATH",
    "BASH_ENV",
    "ENV",
    "RUBYOPT",
    "PERL5OPT",
];

/// Variables that choose which tests run, or what a failed one says: they belong into the command, where a reviewer
/// sees them.
const CHOOSERS: [&str; 5] = [
    "PYTEST_ADDOPTS",
    "PYTEST_PLUGINS",
    "PYTHONOPTIMIZE",
    "MOCHA_OPTIONS",
    "SPEC_OPTS",
];

/// What chooses among the tests in variables that say other things as well, or holds the code itself.
const CHOICES: [(&str, &[&str]); 2] = [
    ("NODE_OPTIONS", &["--test", "data:"]),
    ("GOFLAGS", &["-run", "-skip", "-exec", "-short"]),
];

/// Says whether a variable of a job would change what its tests are, unseen: it loads code from outside of the tree, or
/// chooses among the tests.
#[must_use]
pub fn changes_the_tests(name: &str, value: &str) -> bool {
    let away = |word: &str| word.starts_with(['/', '~']) || word.split('/').any(|part| part == "..");
    let loads = LOADERS.contains(&name) && value.split([':', ',', ';', ' ', '=']).any(away);
    let says = |(variable, words): &(&str, &[&str])| {
        *variable == name && words.iter().any(|word| value.contains(word))
    };
    // By what cargo runs a test binary, or does not.
    let runner = name.starts_with("CARGO_TARGET_") && name.ends_with("_RUNNER");
    loads || ((CHOOSERS.contains(&name) || runner) && !value.is_empty()) || CHOICES.iter().any(says)
}

/// Says whether a variable would lead a certification to a cache that is not its own: one of the known names with a place
/// that is not in the tree, or any with a place in what the state root holds.
#[must_use]
pub fn leads_to_a_cache(name: &str, value: &str, state: &[u8]) -> bool {
    let known = CACHES.iter().any(|cache| cache.eq_ignore_ascii_case(name));
    let mut places = value
        .split([':', ',', ';', ' ', '='])
        .filter(|word| word.starts_with('/'));
    places.any(|place| {
        let in_state = place
            .as_bytes()
            .strip_prefix(state)
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')));
        known || in_state
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_changes_the_tests_is_known() {
        for (name, value) in [
            ("PYTHONPATH", "src:/opt/warm"),
            ("PYTHONPATH", "../other"),
            ("NODE_OPTIONS", "--max-old-space-size=4096 --require=/srv/x.js"),
            ("NODE_PATH", "~/lib"),
            ("LD_PRELOAD", "/tmp/x.so"),
            ("PYTEST_ADDOPTS", "-k nothing"),
            ("PYTEST_PLUGINS", "p"),
            ("PYTHONOPTIMIZE", "1"),
            ("NODE_OPTIONS", "--test-only"),
            ("NODE_OPTIONS", "--import=data:text/javascript,x"),
            ("MOCHA_OPTIONS", "--grep two"),
            ("GOFLAGS", "-mod=vendor -run=X"),
            ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "true"),
            ("LD_LIBRARY_PATH", "/srv/lib"),
            ("BASH_ENV", "/srv/x.sh"),
        ] {
            assert!(changes_the_tests(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("PYTHONPATH", "src:tests/lib"),
            ("NODE_OPTIONS", "--max-old-space-size=4096"),
            ("PYTEST_ADDOPTS", ""),
            ("GOFLAGS", "-mod=vendor"),
            ("ENV", "test"),
            ("LD_LIBRARY_PATH", "target/lib"),
            ("DATABASE", "/srv/data"),
        ] {
            assert!(!changes_the_tests(name, value), "{name}={value}");
        }
    }

    #[test]
    fn a_variable_that_leads_to_a_cache_is_known() {
        let leads = |name, value| leads_to_a_cache(name, value, b"/srv/semel");
        for (name, value) in [
            ("UV_CACHE_DIR", "/var/cache/uv"),
            ("NPM_CONFIG_CACHE", "/root/.npm"),
            ("CARGO_HOME", "/root/.cargo"),
            ("WHATEVER", "/srv/semel/cache/draft"),
            ("ARGS", "--cache=/srv/semel"),
            ("PATHS", "/usr/bin:/srv/semel/x"),
        ] {
            assert!(leads(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("UV_CACHE_DIR", ".cache"),
            ("CARGO_TARGET_DIR", "target"),
            ("DATABASE", "/tmp/x"),
            ("WHATEVER", "/srv/semel2"),
            ("EMPTY", ""),
        ] {
            assert!(!leads(name, value), "{name}={value}");
        }
    }
}
