//! Small lockfiles and manifests, as the ecosystems' own tools wrote them.

macro_rules! kept {
    ($($name:ident = $file:literal, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            pub(crate) const $name: &str = include_str!(concat!("fixtures/", $file));
        )*
    };
}

kept! {
    UV_LOCK = "uv.lock", "From `uv lock`.";
    PYPROJECT = "uv.pyproject.toml", "The manifest or input of the lock above.";
    REQUIREMENTS = "requirements.txt", "From `uv pip compile --generate-hashes`.";
    REQUIREMENTS_IN = "requirements.in", "The manifest or input of the lock above.";
    CARGO_LOCK = "Cargo.lock", "From `cargo generate-lockfile`.";
    CARGO_TOML = "cargo.manifest.toml", "The manifest or input of the lock above.";
    PACKAGE_LOCK = "package-lock.json", "From `npm install`.";
    PACKAGE_JSON = "package.json", "The manifest or input of the lock above.";
    POETRY_LOCK = "poetry.lock", "From `poetry lock`.";
    POETRY_PYPROJECT = "poetry.pyproject.toml", "The manifest of the lock above.";
    PDM_LOCK = "pdm.lock", "From `pdm lock`.";
    PDM_PYPROJECT = "pdm.pyproject.toml", "The manifest of the lock above, and of both pylocks.";
    PYLOCK_UV = "pylock.uv.toml", "From `uv export --format pylock.toml`.";
    PYLOCK_PIP = "pylock.pip.toml", "From `pip lock`.";
    PIPFILE_LOCK = "Pipfile.lock", "From `pipenv lock`.";
    PIPFILE = "Pipfile", "The manifest of the lock above.";
    PNPM_LOCK = "pnpm-lock.yaml", "From `pnpm install --lockfile-only`.";
    PNPM_PACKAGE = "pnpm.package.json", "The manifest of the lock above.";
    PNPM_WORKSPACE_LOCK = "pnpm-workspace-lock.yaml", "The same, of a workspace.";
    PNPM_8_LOCK = "pnpm8-lock.yaml", "The same as the first, of pnpm 8.";
    YARN_LOCK = "yarn1.lock", "From `yarn install` of Yarn 1.";
    YARN_PACKAGE = "yarn1.package.json", "The manifest of the lock above.";
    BERRY_LOCK = "berry.lock", "From `yarn install` of Yarn 4.";
    BERRY_PACKAGE = "berry.package.json", "The manifest of the lock above.";
    BERRY_PACKAGE_B = "berry-b.package.json", "The manifest of its workspace.";
    BERRY_PATCHED_LOCK = "berry-patched.lock", "From `yarn install` of Yarn 4, with patches and links.";
    BERRY_PATCHED_PACKAGE = "berry-patched.package.json", "The manifest of the lock above.";
    BERRY_PATCHED_PACKAGE_C = "berry-patched-c.package.json", "The manifest of its workspace.";
    GO_SUM = "go.sum", "From `go mod tidy`, of cobra 1.8.0.";
    GO_MOD = "go.mod", "The manifest of the lock above.";
    GEMFILE_LOCK = "Gemfile.lock", "From `bundle lock`, of the test gems of RubyGems.";
    GEMFILE = "Gemfile", "The manifest of the lock above.";
    COMPOSER_LOCK = "composer.lock", "From `composer update --no-install`.";
    COMPOSER_JSON = "composer.json", "The manifest of the lock above.";
}

/// The manifests of the workspace of pnpm: its root and its two packages.
pub(crate) const PNPM_WORKSPACE: [(&str, &str); 3] = [
    (
        "package.json",
        include_str!("fixtures/pnpm-workspace-root.package.json"),
    ),
    (
        "packages/a/package.json",
        include_str!("fixtures/pnpm-workspace-a.package.json"),
    ),
    (
        "packages/b/package.json",
        include_str!("fixtures/pnpm-workspace-b.package.json"),
    ),
];
