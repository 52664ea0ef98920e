//! A repository that is certified again and again, with an index of wheels on this machine alone.

use crate::harness::{Site, bare, said, skipped};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Makes wheels of text files, and says the SHA-256 of each.
const WHEELS: &str = r#"
import base64, hashlib, json, sys, zipfile
out, wheels = sys.argv[1], json.loads(sys.argv[2])
digests = {}
for name, version, files in wheels:
    info = f"{name}-{version}.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: case\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows, path = "", f"{out}/{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as z:
        for at, text in files.items():
            z.writestr(at, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows += f"{at},sha256={digest},{len(text.encode())}\n"
        z.writestr(f"{info}/RECORD", rows + f"{info}/RECORD,,\n")
    digests[path.rsplit("/", 1)[1]] = hashlib.sha256(open(path, "rb").read()).hexdigest()
print(json.dumps(digests))
"#;

/// Stands for a test runner: green unless the line above its report fails.
const RUNNER: &str = "import pathlib, sys\nBODY\n\
    pathlib.Path(sys.argv[1]).write_text(\"<testsuite><testcase name='a'/></testsuite>\")\n";

/// Serves pages to installers, on this machine alone, as long as the test process lives.
pub(crate) fn serve(pages: BTreeMap<String, Vec<u8>>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut request, mut line) = (String::new(), String::new());
            drop(reader.read_line(&mut request));
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                line.clear();
            }
            let path = request
                .split(' ')
                .nth(1)
                .unwrap_or_default()
                .trim_matches('/')
                .to_owned();
            let (status, kind, body) = match pages.get(&path) {
                Some(body) if path.starts_with("files/") => ("200 OK", "application/octet-stream", &body[..]),
                Some(body) => ("200 OK", "text/html", &body[..]),
                None => ("404 Not Found", "text/html", &b""[..]),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            drop(stream.write_all(head.as_bytes()));
            if !request.starts_with("HEAD") {
                drop(stream.write_all(body));
            }
        }
    });
    url
}

pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|place| place.is_file())
}

/// A repository that is certified again and again.
pub(crate) struct Lab {
    pub(crate) site: Site,
    /// Where uv lies, if it is here.
    pub(crate) uv: Option<PathBuf>,
    /// The index of the wheels.
    pub(crate) index: String,
    /// The wheels' digests, by file name.
    pub(crate) wheels: BTreeMap<String, String>,
}

impl Lab {
    /// Makes an empty repository, and an index of wheels: name, version, files.
    pub(crate) fn new(wheels: &Value) -> Self {
        let site = Site::new();
        for name in ["Cargo.toml", "Cargo.lock", "check.py"] {
            std::fs::remove_file(site.repository().join(name)).unwrap();
        }
        std::fs::remove_dir_all(site.repository().join("src")).unwrap();
        let stock = site.at("stock");
        std::fs::create_dir(&stock).unwrap();
        let made = Command::new("/usr/bin/env")
            .args([
                "python3",
                "-I",
                "-c",
                WHEELS,
                stock.to_str().unwrap(),
                &wheels.to_string(),
            ])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", said(&made));
        let digests: BTreeMap<String, String> = serde_json::from_slice(&made.stdout).unwrap();
        let mut pages: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (file, digest) in &digests {
            let name = file.split('-').next().unwrap();
            let link = format!("<a href=\"/files/{file}#sha256={digest}\">{file}</a>");
            pages
                .entry(format!("simple/{name}"))
                .or_default()
                .extend(link.bytes());
            pages.insert(format!("files/{file}"), std::fs::read(stock.join(file)).unwrap());
        }
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin/uv");
        Self {
            site,
            uv: beside.is_file().then_some(beside).or_else(|| on_path("uv")),
            index: format!("{}/simple", serve(pages)),
            wheels: digests,
        }
    }

    /// As [`Lab::new`], where uv is here.
    pub(crate) fn with_uv(wheels: &Value) -> Option<Self> {
        let lab = Self::new(wheels);
        if lab.uv.is_none() {
            skipped("uv is not on this machine");
            return None;
        }
        Some(lab)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        let place = self.site.repository().join(name);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.site.repository().join(name)).unwrap()
    }

    /// Writes a manifest with these dependencies, and a test of one line.
    pub(crate) fn project(&self, dependencies: &str, body: &str) {
        self.write(
            "pyproject.toml",
            &format!(
                "[project]\nname = \"app\"\nversion = \"0\"\nrequires-python = \">=3.9\"\n\
                 dependencies = [{dependencies}]\n"
            ),
        );
        self.write("run.py", &RUNNER.replace("BODY", body));
        self.write(".gitignore", ".venv\n");
    }

    pub(crate) fn uv(&self, args: &[&str]) {
        let out = Command::new(self.uv.as_ref().unwrap())
            .args(["--quiet", "--no-progress"])
            .args(args)
            .current_dir(self.site.repository())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.site.home.path())
            .env("UV_CACHE_DIR", self.site.at("uv-cache"))
            .env("UV_DEFAULT_INDEX", &self.index)
            .env("UV_PYTHON_DOWNLOADS", "never")
            .output()
            .unwrap();
        assert!(out.status.success(), "uv {args:?}: {}", said(&out));
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.site.command(&[args, &["--json"]].concat());
        if let Some(dir) = self.uv.as_ref().and_then(|uv| uv.parent()) {
            let path = command
                .get_envs()
                .find(|(name, _)| *name == "PATH")
                .unwrap()
                .1
                .unwrap();
            command.env("PATH", format!("{}:{}", path.to_str().unwrap(), dir.display()));
        }
        command
            .env("UV_DEFAULT_INDEX", &self.index)
            .env("PIP_INDEX_URL", &self.index);
        command
    }

    /// Commits what git tracks or would, and certifies the commit.
    pub(crate) fn certify(&self, installer: &str, test: &str) -> Output {
        let commit = self.site.commit_all("proposal");
        let args = [
            "certify",
            "--job",
            "case",
            "--repository",
            "repo",
            "--git",
            &commit,
        ];
        let args = [&args[..], &["--install", installer, "--test", test]].concat();
        self.command(&args).output().unwrap()
    }

    pub(crate) fn certified(&self, installer: &str) -> Value {
        let out = self.certify(installer, "python run.py {report}");
        assert!(out.status.success(), "{}", said(&out));
        answer(&out)
    }

    pub(crate) fn refused(&self, installer: &str, exit: i32, code: &str) -> Value {
        let out = self.certify(installer, "python run.py {report}");
        assert_eq!(out.status.code(), Some(exit), "{}", said(&out));
        let refusal = answer(&out);
        assert_eq!(refusal["code"], code);
        refusal
    }

    /// Asks the contract whether an attempt may trust the repository as its disk.
    pub(crate) fn contract(&self, attempt: &str, args: &[&str]) -> Option<i32> {
        let mut command = bare(&[&["contract", "check"], args].concat());
        command
            .env("WORKSPACE", self.site.repository())
            .env("VOLUME_GENERATION", "g1")
            .env("JOB_ATTEMPT", attempt);
        command.output().unwrap().status.code()
    }

    /// Copies the repository into a draft that ends clean; gives its generation, or the refusal.
    pub(crate) fn draft(&self) -> Result<String, Value> {
        let place = self.site.repository();
        let args = ["volume", "open", "by-hand", "--from", place.to_str().unwrap()];
        let out = self.command(&args).output().unwrap();
        let opened = answer(&out);
        let Some(generation) = opened["generation"].as_str() else {
            return Err(opened);
        };
        self.site.json(&["volume", "end", generation]);
        Ok(generation.to_owned())
    }
}

pub(crate) fn answer(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", said(out)))
}

/// Gives a project with one package, `dep`, from a tarball in its tree: with such a manifest, and one file more.
pub(crate) fn with_tarball(about: &str, file: &str, text: &str) -> Option<Lab> {
    let Some(npm) = on_path("npm") else {
        skipped("npm is not on this machine");
        return None;
    };
    let lab = Lab::new(&json!([]));
    let dep = lab.site.at("dep");
    std::fs::create_dir(&dep).unwrap();
    std::fs::write(dep.join("package.json"), about).unwrap();
    std::fs::write(dep.join(file), text).unwrap();
    let run = |dir: &Path, args: &[&str]| {
        let out = Command::new(&npm)
            .args(args)
            .args(["--silent", "--offline", "--no-audit", "--no-fund"])
            .current_dir(dir)
            .env("HOME", lab.site.home.path())
            .env("npm_config_cache", lab.site.at("npm-cache"))
            .output()
            .unwrap();
        assert!(out.status.success(), "npm {args:?}: {}", said(&out));
    };
    let repository = lab.site.repository();
    run(
        &dep,
        &["pack", "--pack-destination", repository.to_str().unwrap()],
    );
    lab.write(
        "package.json",
        r#"{"name":"app","version":"1.0.0","dependencies":{"dep":"file:dep-1.0.0.tgz"}}"#,
    );
    run(&repository, &["install", "--package-lock-only"]);
    Some(lab)
}
