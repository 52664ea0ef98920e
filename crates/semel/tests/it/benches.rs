//! The benches: what they conclude from what they measure. They themselves are run by people, not by tests.

use std::path::Path;
use std::process::Command;

/// The longest chain of syncs is counted from a trace as it is by hand; what flips a byte of a certificate flips one.
#[test]
fn the_chain_of_syncs_is_counted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let doctest = |file: &str| {
        let file = root.join(file);
        Command::new("python3")
            .args(["-B", "-m", "doctest", "-v"])
            .arg(&file)
            .current_dir(file.parent()?)
            .output()
            .ok()
    };
    let files = [
        ("bench/once/chain.py", 4),
        ("bench/once/bench.py", 3),
        ("scripts/projects/verifiers.py", 1),
    ];
    for (file, least) in files {
        let Some(out) = doctest(file) else {
            eprintln!("SKIPPED: no python3 on PATH");
            return;
        };
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let passed = said.lines().find_map(|line| {
            line.split_once(" passed")?
                .0
                .rsplit(' ')
                .next()?
                .parse::<u32>()
                .ok()
        });
        assert!(passed >= Some(least), "{said}");
    }
}

/// The load generator tells of a success that had no effect, and of refusals.
#[test]
fn a_lie_is_seen_by_the_load_generator() {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = listener.local_addr().unwrap().to_string();
    let root = tempfile::tempdir().unwrap();
    // It deletes every other file, refuses every third call, and says 200 to the rest.
    let place = root.path().to_owned();
    std::thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        for n in 0..6 {
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).unwrap();
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let path = place.join(body["path"].as_str().unwrap());
            let status = if n % 3 == 2 { "409 Conflict" } else { "200 OK" };
            if n % 3 == 0 {
                std::fs::remove_file(path).unwrap();
            }
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    let load = Path::new(env!("CARGO_BIN_EXE_semel"))
        .with_file_name("examples")
        .join("load");
    if !load.is_file() {
        eprintln!("SKIPPED: the examples are not built");
        return;
    }
    let out = Command::new(load)
        .args([
            "http",
            "--url",
            &url,
            "--route",
            "/x",
            "--names",
            "relative",
            "--clients",
            "1",
            "--files",
            "6",
        ])
        .args(["--seconds", "60", "--body", r#"{"path":"{path}"}"#, "--root"])
        .arg(root.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let row: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(
        (&row["calls"], &row["bad"], &row["missed"]),
        (&4.into(), &2.into(), &2.into()),
        "{row}"
    );
}
