//! What people and machines read is compared with what is committed.

use crate::harness::bare;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn printed(args: &[&str]) -> String {
    let out = bare(args).output().unwrap();
    assert!(
        out.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

/// Compares a file of the repository with what the binary prints; says how to renew it.
fn same(file: &str, args: &[&str], made: &str) {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let committed = std::fs::read_to_string(&place).unwrap_or_default();
    if committed == made {
        return;
    }
    let at = committed.lines().zip(made.lines()).position(|(a, b)| a != b);
    let at = at.unwrap_or_else(|| committed.lines().count().min(made.lines().count()));
    panic!(
        "{file} is out of date, first at line {}:\n- {}\n+ {}\nrenew it: semel {} > crates/semel/{file}",
        at + 1,
        committed.lines().nth(at).unwrap_or("(end)"),
        made.lines().nth(at).unwrap_or("(end)"),
        args.join(" "),
    );
}

#[test]
fn the_documents_are_those_of_the_binary() {
    for (file, args) in [
        ("openapi.json", &["generate", "openapi"][..]),
        ("mcp-tools.json", &["generate", "mcp-tools"]),
        ("../../docs/limits.md", &["generate", "limits"]),
        ("../../docs/errors/README.md", &["generate", "errors"]),
    ] {
        same(file, args, &printed(args));
    }
}

#[test]
fn the_help_is_what_was_agreed() {
    let help = printed(&["--help"]);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.len() >= 20, "{commands:?}");
    same("tests/it/snapshots/help.txt", &["--help"], &help);
    for command in commands {
        let args = [command, "--help"];
        same(
            &format!("tests/it/snapshots/help-{command}.txt"),
            &args,
            &printed(&args),
        );
    }
}

/// Gives the long flags that a text names.
fn flags(text: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    let words = text
        .split(word)
        .filter(|word| word.starts_with("--") && word.len() > 2);
    words.collect()
}

/// Lists the commands beneath one, as its help shows them: what is hidden is not there.
fn beneath(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| !line.starts_with("Commands:"));
    let list = list.skip(1).take_while(|line| line.starts_with("  "));
    let names = list.filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The pages that people read, without those of plans and of decisions.
fn pages() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut places = vec![root.join("README.md")];
    for (directory, of_each) in [
        ("docs", ""),
        ("docs/errors", ""),
        ("examples", "README.md"),
        ("packaging", "README.md"),
    ] {
        let entries = std::fs::read_dir(root.join(directory)).unwrap();
        let entries = entries.map(|entry| entry.unwrap().path());
        places.extend(entries.map(|place| match of_each {
            "" => place,
            name => place.join(name),
        }));
    }
    let is_page = |place: &PathBuf| {
        place.is_file()
            && place.extension().is_some_and(|end| end == "md")
            && !place.ends_with("architecture.md")
    };
    places.retain(is_page);
    places
        .iter()
        .map(|place| std::fs::read_to_string(place).unwrap())
        .collect()
}

/// A flag that only --help knows is one that nobody learns of: each stands on a page that speaks of its command.
#[test]
fn every_flag_is_on_a_page() {
    let pages = pages();
    assert!(pages.len() > 60, "{}", pages.len());
    let (mut seen, mut missing) = (0, Vec::new());
    let mut left: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(command) = left.pop() {
        let args: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let help = printed(&args);
        left.extend(
            beneath(&help)
                .into_iter()
                .map(|name| [&command[..], &[name]].concat()),
        );
        let heads = help.lines().map(str::trim).filter(|line| line.starts_with('-'));
        let heads = heads.filter_map(|line| line.split("  ").next());
        for flag in heads
            .flat_map(flags)
            .filter(|flag| !["--help", "--version"].contains(flag))
        {
            seen += 1;
            let everywhere = ["--state", "--config", "--json", "--quiet"].contains(&flag);
            let spoken = match command.first() {
                Some(name) if !everywhere => format!("semel {name}"),
                _ => String::new(),
            };
            let told = pages
                .iter()
                .any(|page| page.contains(&spoken) && flags(page).contains(flag));
            if !told {
                missing.push(format!("semel {} {flag}", command.join(" ")));
            }
        }
    }
    assert!(seen > 300, "{seen}");
    assert!(missing.is_empty(), "on no page:\n{}", missing.join("\n"));
}

#[test]
fn the_openapi_document_names_what_it_should() {
    let document: serde_json::Value = serde_json::from_str(&printed(&["generate", "openapi"])).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    for line in printed(&["generate", "routes"]).lines() {
        let (method, path) = line.split_once(' ').unwrap();
        // What is spoken there is not OpenAPI's to say.
        if path == "/mcp" {
            continue;
        }
        let method = method.to_lowercase();
        let found = if path == "/v1/tools/{tool}" {
            paths
                .iter()
                .any(|(path, item)| path.starts_with("/v1/tools/") && item.get(&method).is_some())
        } else {
            paths.get(path).is_some_and(|item| item.get(&method).is_some())
        };
        assert!(found, "{line} is documented");
    }
}

/// The page of the tools has each tool under its heading, with each argument and every other name of it.
#[test]
fn the_page_of_the_tools_has_every_argument() {
    let document: serde_json::Value = serde_json::from_str(&printed(&["generate", "openapi"])).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/tools.md")).unwrap();
    let mut tools = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(tool) = path.strip_prefix("/v1/tools/") else {
            continue;
        };
        tools += 1;
        let (_, section) = page.split_once(&format!("\n## {tool}\n")).expect(tool);
        let section = section.split("\n## ").next().unwrap();
        assert!(
            section.contains(&format!("semel call {tool} ")),
            "{tool} has an example"
        );
        let schema = &item["post"]["requestBody"]["content"]["application/json"]["schema"];
        let arguments = schema["properties"].as_object().unwrap().keys();
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        for argument in arguments.filter(|name| *name != "idempotency_key") {
            let row = rows.iter().find(|row| row.contains(&format!("`{argument}`")));
            assert!(row.is_some(), "{tool} lacks {argument}");
        }
    }
    assert!(tools >= 14, "{tools}");
    for file in [
        "crates/semel/src/engine/gateway/tool.rs",
        "crates/semel/src/engine/gateway/tool/reads.rs",
    ] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        for list in text.split("aliases: &[").skip(1) {
            let list = list.split(']').next().unwrap();
            for alias in list.split('"').skip(1).step_by(2) {
                let hidden = ["pathB64"].contains(&alias);
                assert!(
                    hidden || page.contains(&format!("`{alias}`")),
                    "{file}: {alias} is on no page"
                );
            }
        }
    }
}

#[test]
fn usage_errors_exit_64_and_help_is_no_error() {
    for args in [
        &["nonsense"][..],
        &["volume", "open"],
        &["serve", "--no-such"],
        &[],
    ] {
        let out = bare(args).output().unwrap();
        assert_eq!(out.status.code(), Some(64), "{args:?}");
    }
    assert!(bare(&["--version"]).output().unwrap().status.success());
    for shell in ["bash", "zsh", "fish"] {
        assert!(printed(&["generate", "completions", shell]).contains("semel"));
    }
    assert!(printed(&["generate", "man", "serve"]).contains(".TH"));
}
