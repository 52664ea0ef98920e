//! Small lockfiles and manifests, as the ecosystems' own tools wrote them.

/// From `uv lock`.
pub(crate) const UV_LOCK: &str = r#"version = 1
revision = 5
requires-python = ">=3.11"

[[package]]
name = "colorama"
version = "0.4.6"
source = { registry = "https://index.example/simple" }
sdist = { url = "https://files.example/packages/d8/53/6f443c9a4a8358a93a6792e2acffb9d9d5cb0a5cfd8802644b7b1c9a02e4/colorama-0.4.6.tar.gz", hash = "sha256:08695f5cb7ed6e0531a20572697297273c47b8cae5a63ffc6d6ed5c201be6e44", size = 27697, upload-time = "2022-10-25T02:36:22.414Z" }
wheels = [
    { url = "https://files.example/packages/d1/d6/3965ed04c63042e047cb6a3e6ed1a63a35087b6a609aa3a15ed8ac56c221/colorama-0.4.6-py2.py3-none-any.whl", hash = "sha256:4f1d9991f5acc0ca119f9d443620b77f9d6b33703e51011c16baf57afb285fc6", size = 25335, upload-time = "2022-10-25T02:36:20.889Z" },
]

[[package]]
name = "demo"
version = "0.1.0"
source = { editable = "." }
dependencies = [
    { name = "colorama", marker = "sys_platform == 'win32'" },
    { name = "six" },
]

[package.optional-dependencies]
all = [
    { name = "idna" },
]
net = [
    { name = "idna" },
]

[package.dev-dependencies]
dev = [
    { name = "iniconfig" },
    { name = "zipp" },
]
lint = [
    { name = "zipp" },
]

[package.metadata]
requires-dist = [
    { name = "colorama", marker = "sys_platform == 'win32'" },
    { name = "demo", extras = ["net"], marker = "extra == 'all'" },
    { name = "idna", marker = "extra == 'net'", specifier = ">=3" },
    { name = "six", specifier = ">=1.16,<2" },
]
provides-extras = ["net", "all"]

[package.metadata.requires-dev]
dev = [
    { name = "iniconfig", specifier = ">=2" },
    { name = "zipp" },
]
lint = [{ name = "zipp" }]

[[package]]
name = "idna"
version = "3.20"
source = { registry = "https://index.example/simple" }
sdist = { url = "https://files.example/packages/f5/08/8eea9d4b8302028f3abb2c0813953f7aec26d33b7a8960ed760e65ff29fa/idna-3.20.tar.gz", hash = "sha256:a7db850025b95ded1eae8a46181a1a6c56c92c96f0e2b005d9ff8dc0210cab44", size = 216463, upload-time = "2026-09-17T14:11:04.752Z" }
wheels = [
    { url = "https://files.example/packages/58/a2/bb081bab032533a855d44de1d56f8e8426114ff1ba5d1f07a438a0a654f8/idna-3.20-py3-none-any.whl", hash = "sha256:ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c", size = 69583, upload-time = "2026-09-17T14:11:03.168Z" },
]

[[package]]
name = "iniconfig"
version = "2.3.1"
source = { registry = "https://index.example/simple" }
sdist = { url = "https://files.example/packages/01/e1/2069291243c926a2ff1cd706c7f3eeb9b62144bf60f77c9fb9ff2fb26bd3/iniconfig-2.3.1.tar.gz", hash = "sha256:67f4b9c50da0dedf52af349e7749a80a9057a5031199791b906c3bb3ae878960", size = 21209, upload-time = "2026-10-06T22:48:38.076Z" }
wheels = [
    { url = "https://files.example/packages/56/43/4ca9e49d27a1fcf6bece6f6aec0ea46bb9112489b93d4b688fb415457bdb/iniconfig-2.3.1-py3-none-any.whl", hash = "sha256:9121e2c1fdb355232495be3194c8dfe87ccc2d5dee45947b78e68f499790d7a7", size = 7552, upload-time = "2026-10-06T22:48:36.959Z" },
]

[[package]]
name = "six"
version = "1.17.0"
source = { registry = "https://index.example/simple" }
sdist = { url = "https://files.example/packages/94/e7/b2c673351809dca68a0e064b6af791aa332cf192da575fd474ed7d6f16a2/six-1.17.0.tar.gz", hash = "sha256:ff70335d468e7eb6ec65b95b99d3a2836546063f63acc5171de367e834932a81", size = 34031, upload-time = "2024-12-04T17:35:28.174Z" }
wheels = [
    { url = "https://files.example/packages/b7/ce/149a00dd41f10bc29e5921b496af8b574d8413afcd5e30dfa0ed46c2cc5e/six-1.17.0-py2.py3-none-any.whl", hash = "sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274", size = 11050, upload-time = "2024-12-04T17:35:26.475Z" },
]

[[package]]
name = "zipp"
version = "4.1.2"
source = { registry = "https://index.example/simple" }
sdist = { url = "https://files.example/packages/18/05/ba1458dee0ac485b2a01071c1b88f5199fe878a485df482e10e1ef2205cc/zipp-4.1.2.tar.gz", hash = "sha256:cf474b90b07ea932637e17c6b9479de2b2882900b0d311bdaf4f5c000a15a97f", size = 27864, upload-time = "2026-10-21T18:57:04.743Z" }
wheels = [
    { url = "https://files.example/packages/b8/44/7bd2007260da11cccca29ba2d4c345f1287aa663db38ee7cefeabf6386a5/zipp-4.1.2-py3-none-any.whl", hash = "sha256:b30cb6cd253122169c47de245ca24a86bac2a5d3802ba15bf7ba6414eb9e144d", size = 10581, upload-time = "2026-10-21T18:57:03.79Z" },
]
"#;

/// The manifest or input of the lock above.
pub(crate) const PYPROJECT: &str = r#"[project]
name = "demo"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = [
    "six>=1.16,<2",
    "colorama; sys_platform == 'win32'",
]

[project.optional-dependencies]
net = ["idna >= 3"]
all = ["demo[net]"]

[dependency-groups]
dev = ["iniconfig>=2", { include-group = "lint" }]
lint = ["zipp"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"#;

/// From `uv pip compile --generate-hashes`.
pub(crate) const REQUIREMENTS: &str = r#"idna==3.20 \
    --hash=sha256:a7db850025b95ded1eae8a46181a1a6c56c92c96f0e2b005d9ff8dc0210cab44 \
    --hash=sha256:ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c
    # via -r requirements.in
six==1.17.0 \
    --hash=sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274 \
    --hash=sha256:ff70335d468e7eb6ec65b95b99d3a2836546063f63acc5171de367e834932a81
    # via -r requirements.in
"#;

/// The manifest or input of the lock above.
pub(crate) const REQUIREMENTS_IN: &str = r#"six>=1.16
idna==3.20
"#;

/// From `cargo generate-lockfile`.
pub(crate) const CARGO_LOCK: &str = r#"# This file is automatically @generated by Cargo.
# It is not intended for manual editing.
version = 4

[[package]]
name = "cfg-if"
version = "1.0.5"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "4e7648175b45a9a48536d676f68d918270699102aa8dab5496df06904c914600"

[[package]]
name = "demo"
version = "0.1.0"
dependencies = [
 "cfg-if",
 "itoa",
 "log",
 "want",
]

[[package]]
name = "itoa"
version = "1.0.19"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "3bd1574e617a9a6c1f8f8181bd7e841e1f20e4277607ef28945765188d6284d4"

[[package]]
name = "log"
version = "0.4.35"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "5d15f86d12da44cd8d4ec3c73984537eb7f4cadcb9776a575a0a8a05ca11005c"

[[package]]
name = "try-lock"
version = "0.2.5"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "e421abadd41a4225275504ea4d6566923418b7f05506fbc9c0fe86ba7396114b"

[[package]]
name = "want"
version = "0.3.2"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "ec4cdd0dd910afe868b7ef477227d8d538b46b3075031afee8a9f2acb0a2ed0b"
dependencies = [
 "try-lock",
]
"#;

/// The manifest or input of the lock above.
pub(crate) const CARGO_TOML: &str = r#"[package]
name = "demo"
version = "0.1.0"
edition = "2024"

[dependencies]
log = "0.4"
want = "0.3.1"

[dev-dependencies]
cfg-if = "1"

[target.'cfg(windows)'.dependencies]
itoa = { version = "1.0", optional = true }
"#;

/// From `npm install`.
pub(crate) const PACKAGE_LOCK: &str = r#"{
  "name": "probe-app",
  "version": "1.0.0",
  "lockfileVersion": 3,
  "requires": true,
  "packages": {
    "": {
      "name": "probe-app",
      "version": "1.0.0",
      "dependencies": {
        "is-odd": "3.0.1",
        "ms": "^2.1.3"
      },
      "devDependencies": {
        "semver": "^7.6.0"
      },
      "optionalDependencies": {
        "fsevents": "^2.3.3"
      }
    },
    "node_modules/fsevents": {
      "version": "2.3.3",
      "integrity": "sha512-5xoDfX+fL7faATnagmWPpbFtwh/R77WmMMqqHGS65C3vvB0YHrgF+B1YmZ3441tMj5n63k0212XNoJwzlhffQw==",
      "license": "MIT",
      "optional": true,
      "os": [
        "darwin"
      ],
      "engines": {
        "node": "^8.16.0 || ^10.6.0 || >=11.0.0"
      }
    },
    "node_modules/is-number": {
      "version": "6.0.0",
      "integrity": "sha512-Wu1VHeILBK8KAWJUAiSZQX94GmOE45Rg6/538fKwiloUu21KncEkYGPqob2oSZ5mUT73vLGrHQjKw3KMPwfDzg==",
      "license": "MIT",
      "engines": {
        "node": ">=0.10.0"
      }
    },
    "node_modules/is-odd": {
      "version": "3.0.1",
      "integrity": "sha512-CQpnWPrDwmP1+SMHXZhtLtJv90yiyVfluGsX5iNCVkrhQtU3TQHsUWPG9wkdk9Lgd5yNpAg9jQEo90CBaXgWMA==",
      "license": "MIT",
      "dependencies": {
        "is-number": "^6.0.0"
      },
      "engines": {
        "node": ">=4"
      }
    },
    "node_modules/ms": {
      "version": "2.1.3",
      "integrity": "sha512-6FlzubTLZG3J2a/NVCAleEhjzq5oxgHyaCU9yYXvcLsvoVaHJq/s5xXI6/XXP6tz7R9xAOtHnSO/tXtF3WRTlA==",
      "license": "MIT"
    },
    "node_modules/semver": {
      "version": "7.8.6",
      "integrity": "sha512-9lpSSU4Mly3mrtruwLs1eLK6+gzbzqeBFwRNjIjE+9LuDpWdYctrQlQ3ej1Ilgi7gknpsTRnPoLP8DpCHqHIJw==",
      "dev": true,
      "license": "ISC",
      "bin": {
        "semver": "bin/semver.js"
      },
      "engines": {
        "node": ">=10"
      }
    }
  }
}
"#;

/// The manifest or input of the lock above.
pub(crate) const PACKAGE_JSON: &str = r#"{"name":"probe-app","version":"1.0.0","private":true,"dependencies":{"ms":"^2.1.3","is-odd":"3.0.1"},"devDependencies":{"semver":"^7.6.0"},"optionalDependencies":{"fsevents":"^2.3.3"}}
"#;

macro_rules! kept {
    ($($name:ident = $file:literal, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            pub(crate) const $name: &str = include_str!(concat!("fixtures/", $file));
        )*
    };
}

kept! {
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
        r#"{"name":"root","private":true,"devDependencies":{"semver":"^7.6.0"}}"#,
    ),
    (
        "packages/a/package.json",
        r#"{"name":"a","version":"1.0.0","dependencies":{"b":"workspace:*","ms":"^2.1.3","react-dom":"18.2.0","react":"18.2.0"}}"#,
    ),
    (
        "packages/b/package.json",
        r#"{"name":"b","version":"1.0.0","dependencies":{"is-odd":"3.0.1","alias":"npm:ms@2.0.0"}}"#,
    ),
];
