use super::*;
use crate::effect::{Content, Effect};
use crate::ignore::EntryKind;
use proptest::prelude::*;

const TOOLS: &[&str] = &["read_file", "write_file", "delete_directory", "move_file"];

fn policy(text: &str) -> Policy {
    Policy::parse(text, TOOLS).unwrap()
}

fn refused(text: &str) -> String {
    let refusal = Policy::parse(text, TOOLS).unwrap_err();
    assert_eq!(refusal.code, Code::BadConfig, "{text}");
    refusal.to_string()
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

const WRITES: Caller<'_> = Caller {
    tool: "write_file",
    group: Group::Mutate,
    role: Role::Draft,
};
const READS: Caller<'_> = Caller {
    tool: "read_file",
    group: Group::Read,
    role: Role::Draft,
};

/// Says in a word what a verdict is.
fn word(verdict: Verdict<'_>) -> String {
    match verdict {
        Verdict::Allow => "allow".to_owned(),
        Verdict::Ask(ground) => format!("ask {}", ground.number),
        Verdict::Deny(ground) => format!("deny {}", ground.number),
        Verdict::Git => "git".to_owned(),
    }
}

fn at(policy: &Policy, caller: Caller<'_>, text: &str) -> String {
    word(policy.at(caller, &path(text)))
}

#[test]
fn the_first_rule_that_matches_decides_and_none_allows() {
    let policy = policy(
        r#"
        [[rule]]
        paths = ["secrets/public/**"]
        answer = "allow"
        [[rule]]
        paths = ["secrets/**", "**/.env"]
        tools = ["mutate"]
        answer = "deny"
        reason = "keys"
        [[rule]]
        paths = ["secrets/**"]
        tools = ["read_file"]
        roles = ["draft"]
        answer = "ask"
        expires = "10m"
        "#,
    );
    for (caller, text, verdict) in [
        (WRITES, "secrets/public/a", "allow"),
        (WRITES, "secrets/a", "deny 2"),
        (WRITES, "secrets/a/b", "deny 2"),
        (WRITES, "secrets", "allow"),
        (WRITES, "x/secrets/a", "allow"),
        (WRITES, ".env", "deny 2"),
        (WRITES, "a/b/.env", "deny 2"),
        (WRITES, "a/b/.env2", "allow"),
        (READS, "secrets/a", "ask 3"),
        (READS, "a/.env", "allow"),
        (READS, "", "allow"),
    ] {
        assert_eq!(at(&policy, caller, text), verdict, "{text}");
    }
    let cert = Caller {
        role: Role::Cert,
        ..READS
    };
    assert_eq!(at(&policy, cert, "secrets/a"), "allow");
    let other = Caller {
        tool: "list_directory",
        ..READS
    };
    assert_eq!(at(&policy, other, "secrets/a"), "allow");
    assert!(policy.asks());
}

#[test]
fn another_spelling_of_a_path_is_no_way_around_a_rule() {
    let policy = policy(
        r#"
        [[rule]]
        paths = ["open/**"]
        answer = "allow"
        [[rule]]
        paths = ["secrets/**", "/stra\u00dfe", "/[k]ey-[0-9]"]
        answer = "deny"
        [[rule]]
        paths = ["open/**"]
        answer = "deny"
        "#,
    );
    for text in ["SECRETS/a", "Secrets/A", "STRASSE", "KEY-7"] {
        assert_eq!(at(&policy, WRITES, text), "deny 2", "{text}");
    }
    let but_one = r#"
        [[rule]]
        paths = ["/[!a]"]
        answer = "deny"
        "#;
    let but_one = Policy::parse(but_one, TOOLS).unwrap();
    assert_eq!(
        at(&but_one, WRITES, "a"),
        "allow",
        "what is written out stays out"
    );
    assert_eq!(at(&but_one, WRITES, "B"), "deny 1");
    // A rule that allows is taken by the letter.
    assert_eq!(at(&policy, WRITES, "open/a"), "allow");
    assert_eq!(at(&policy, WRITES, "OPEN/a"), "deny 3");
}

#[test]
fn only_a_rule_that_names_git_opens_what_belongs_to_it() {
    for (rules, verdict) in [
        (vec![], "git"),
        (vec![("**", "allow")], "git"),
        (vec![("**", "ask")], "git"),
        (vec![("**", "deny")], "deny 1"),
        (vec![(".git/**", "allow")], "allow"),
        (vec![(".git/config", "ask")], "ask 1"),
        (vec![("**/.git/**", "allow")], "allow"),
        (vec![("**", "allow"), (".git/**", "allow")], "git"),
        (vec![("**", "deny"), (".git/**", "allow")], "deny 1"),
        (vec![(".git/hooks/**", "deny"), (".git/**", "allow")], "allow"),
        (vec![("?git/**", "allow")], "git"),
    ] {
        let text: String = rules
            .iter()
            .map(|(glob, answer)| format!("[[rule]]\npaths = [\"{glob}\"]\nanswer = \"{answer}\"\n"))
            .collect();
        let policy = policy(&text);
        assert_eq!(at(&policy, WRITES, ".git/config"), verdict, "{rules:?}");
        let opens = rules
            .iter()
            .any(|(glob, answer)| glob.contains(".git") && *answer != "deny");
        assert_eq!(policy.opens_git(WRITES), opens);
    }
    let policy = policy(
        "[[rule]]\npaths = [\".git/hooks/**\"]\nanswer = \"deny\"\n[[rule]]\npaths = [\".git/**\"]\nanswer = \"allow\"\n",
    );
    assert_eq!(at(&policy, WRITES, ".git/hooks/x"), "deny 1");
    assert_eq!(
        at(&policy, WRITES, ".GIT/config"),
        "git",
        "not what the rule names"
    );
    assert_eq!(at(&policy, WRITES, ".git"), "git", "the directory itself");
    assert_eq!(at(&policy, READS, ".git/HEAD"), "allow", "a read changes nothing");
}

fn entries(paths: &[(&str, EntryKind)]) -> Beneath {
    Beneath::Seen(
        paths
            .iter()
            .map(|(path, kind)| Entry {
                path: path.as_bytes().to_vec(),
                kind: *kind,
            })
            .collect(),
    )
}

#[test]
fn a_directory_that_goes_takes_the_strictest_verdict_of_all_that_is_in_it() {
    use EntryKind::{Directory, Other};
    let policy = policy(
        r#"
        [[rule]]
        paths = ["secrets/**", "a/deep/secrets/**"]
        answer = "deny"
        [[rule]]
        paths = ["**/*.pem"]
        answer = "ask"
        "#,
    );
    for (text, beneath, verdict, shown) in [
        ("secrets", entries(&[]), "deny 1", "secrets"),
        ("secrets", entries(&[("x", Other)]), "deny 1", "secrets"),
        ("secrets", Beneath::Nothing, "allow", ""),
        ("a", entries(&[("deep", Directory)]), "allow", ""),
        (
            "a",
            entries(&[("deep", Directory), ("deep/secrets", Directory)]),
            "deny 1",
            "a/deep/secrets",
        ),
        ("a", entries(&[("deep/secrets", Other)]), "allow", ""),
        ("b", entries(&[("x", Other)]), "allow", ""),
        (
            "b",
            entries(&[("x", Other), ("y/z.pem", Other)]),
            "ask 2",
            "b/y/z.pem",
        ),
        ("b", Beneath::Unseen, "ask 2", "b"),
        ("a", Beneath::Unseen, "deny 1", "a"),
    ] {
        let at = path(text);
        let judged = policy.judge(
            WRITES,
            [match &beneath {
                Beneath::Nothing => Touched::Path(&at),
                beneath => Touched::Directory { at: &at, beneath },
            }],
        );
        let got = (word(judged.verdict), judged.path.as_str());
        assert_eq!(got, (verdict.to_owned(), shown), "{text} {beneath:?}");
    }
}

/// A command is allowed only by a rule that allows everything before any that does not, or where none is about it.
#[test]
fn a_command_touches_everything() {
    let command = Caller {
        tool: "run_command",
        group: Group::Mutate,
        role: Role::Draft,
    };
    for (text, verdict) in [
        ("", "allow"),
        ("[[rule]]\npaths = ['a/**']\nanswer = 'deny'", "deny 1"),
        (
            "[[rule]]\npaths = ['a/**']\ntools = ['read']\nanswer = 'ask'",
            "ask 1",
        ),
        (
            "[[rule]]\npaths = ['a/**']\ntools = ['write_file']\nanswer = 'deny'",
            "allow",
        ),
        (
            "[[rule]]\npaths = ['**']\ntools = ['run_command']\nanswer = 'ask'\n[[rule]]\npaths = ['a/**']\nanswer = 'deny'",
            "ask 1",
        ),
        (
            "[[rule]]\npaths = ['**/*']\ntools = ['run_command']\nanswer = 'allow'\n[[rule]]\npaths = ['a/**']\nanswer = 'deny'",
            "deny 2",
        ),
        (
            "[[rule]]\npaths = ['a/**']\nanswer = 'allow'\n[[rule]]\npaths = ['**']\nanswer = 'deny'",
            "deny 2",
        ),
        (
            "[[rule]]\npaths = ['**']\nroles = ['cert']\nanswer = 'deny'",
            "allow",
        ),
    ] {
        let policy = Policy::parse(text, &["run_command", "write_file"]).unwrap();
        let judged = policy.judge(command, [Touched::Everything]);
        assert_eq!(word(judged.verdict), verdict, "{text}");
    }
}

#[test]
fn an_effect_touches_both_ends_and_every_directory_that_it_makes() {
    use crate::sample;
    let made = [path("a"), path("a/b")];
    let effect = Effect::Install {
        at: path("a"),
        staged: sample::file(1),
        content: Content::Directory { made: made.to_vec() },
        before: None,
    };
    let all = touched(&effect, &Beneath::Nothing);
    assert!(made.iter().all(|path| all.contains(&Touched::Path(path))));
    let effect = Effect::Move {
        from: path("x"),
        to: path("y"),
        what: sample::before(1),
    };
    let beneath = entries(&[("z", EntryKind::Other)]);
    let [from, to] = &touched(&effect, &beneath)[..] else {
        panic!("both ends");
    };
    let policy = policy("[[rule]]\npaths = [\"/y/z\"]\nanswer = \"deny\"\n");
    assert_eq!(word(policy.judge(WRITES, [*from]).verdict), "allow");
    assert_eq!(word(policy.judge(WRITES, [*to]).verdict), "deny 1");
    let held = tree(&effect, &beneath).unwrap();
    assert_eq!(held.holds.as_ref().unwrap().entries, 1);
    let other = tree(&effect, &entries(&[("z", EntryKind::Directory)])).unwrap();
    assert_ne!(held, other, "another kind is another tree");
    assert_eq!(tree(&effect, &Beneath::Nothing), None);
}

#[test]
fn a_policy_that_could_be_read_in_two_ways_is_refused() {
    let rule = |more: &str| format!("[[rule]]\n{more}\n");
    for (text, says) in [
        (rule("paths = [\"*.pem\"]\nanswer = \"deny\""), "/NAME"),
        (rule("paths = [\"secrets/\"]\nanswer = \"deny\""), "slash"),
        (rule("paths = [\"a//b\"]\nanswer = \"deny\""), "empty name"),
        (rule("paths = [\"a/../b\"]\nanswer = \"deny\""), ".."),
        (rule("paths = [\"/\"]\nanswer = \"deny\""), "empty name"),
        (rule("paths = [\"\"]\nanswer = \"deny\""), "/NAME"),
        (rule("paths = [\"a/[b\"]\nanswer = \"deny\""), "not whole"),
        (rule("paths = []\nanswer = \"deny\""), "rule 1"),
        (rule("paths = [\"**\"]\nanswer = \"deny\"\ntools = []"), "tools"),
        (rule("paths = [\"**\"]\nanswer = \"deny\"\nroles = []"), "roles"),
        (
            rule("paths = [\"**\"]\nanswer = \"deny\"\ntools = [\"wirte_file\"]"),
            "wirte_file",
        ),
        (
            rule("paths = [\"**\"]\nanswer = \"deny\"\nexpires = \"5m\""),
            "expires",
        ),
        (
            rule("paths = [\"**\"]\nanswer = \"ask\"\nexpires = \"5 minutes\""),
            "length of time",
        ),
        (
            rule("paths = [\"**\"]\nanswer = \"ask\"\nreason = \"a\\nb\""),
            "one line",
        ),
        (rule("paths = [\"**\"]\nanswer = \"maybe\""), "maybe"),
        (rule("paths = [\"**\"]"), "answer"),
        (rule("answer = \"deny\""), "paths"),
        (rule("path = [\"**\"]\nanswer = \"deny\""), "path"),
        ("rules = []".to_owned(), "rules"),
        ("hard_links = \"keep\"".to_owned(), "keep"),
        ("[[rule]".to_owned(), "line 1"),
    ] {
        let refusal = refused(&text);
        assert!(refusal.contains(says), "{text}: {refusal}");
    }
    assert_eq!(policy("").hard_links, HardLinks::Break);
    assert_eq!(at(&policy(""), WRITES, "a"), "allow");
}

/// Matches as slowly and as plainly as can be: name by name, byte by byte.
fn naive(pattern: &str, text: &str) -> bool {
    fn name(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|n| name(rest, &text[n..])),
            [b'?', rest @ ..] => !text.is_empty() && name(rest, &text[1..]),
            [b'[', b'!', not, b']', rest @ ..] => {
                text.first().is_some_and(|b| b != not) && name(rest, &text[1..])
            }
            [b'[', one, two, b']', rest @ ..] => {
                text.first().is_some_and(|b| b == one || b == two) && name(rest, &text[1..])
            }
            [byte, rest @ ..] => text.first() == Some(byte) && name(rest, &text[1..]),
        }
    }
    fn names(patterns: &[&str], texts: &[&str]) -> bool {
        match patterns {
            [] => texts.is_empty(),
            ["**"] => !texts.is_empty(),
            ["**", rest @ ..] => (0..=texts.len()).any(|n| names(rest, &texts[n..])),
            [one, rest @ ..] => {
                texts
                    .first()
                    .is_some_and(|text| name(one.as_bytes(), text.as_bytes()))
                    && names(rest, &texts[1..])
            }
        }
    }
    // As in git, more stars are two.
    let stars = |name: &str| name.len() > 1 && name.bytes().all(|b| b == b'*');
    let spelt = pattern.trim_start_matches('/').split('/');
    let pattern: Vec<&str> = spelt.map(|name| if stars(name) { "**" } else { name }).collect();
    names(&pattern, &text.split('/').collect::<Vec<_>>())
}

fn globs() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        3 => Just("**".to_owned()),
        5 => "(a|b|\\*|\\?|\\[ab\\]|\\[!a\\]){1,3}",
    ];
    prop::collection::vec(name, 1..4).prop_map(|names| format!("/{}", names.join("/")))
}

fn paths() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab]{1,3}", 1..5).prop_map(|names| names.join("/"))
}

type Made = (Vec<String>, u8, u8, u8);

fn rules() -> impl Strategy<Value = Vec<Made>> {
    prop::collection::vec(
        (prop::collection::vec(globs(), 1..3), 0..3_u8, 0..3_u8, 0..3_u8),
        0..5,
    )
}

fn made(rules: &[Made]) -> Policy {
    let text: String = rules
        .iter()
        .map(|(globs, answer, tools, roles)| {
            let paths: Vec<String> = globs.iter().map(|glob| format!("'{glob}'")).collect();
            let answer = ["allow", "ask", "deny"][usize::from(*answer)];
            let tools =
                ["", "tools = ['mutate']\n", "tools = ['read_file', 'move_file']\n"][usize::from(*tools)];
            let roles = ["", "roles = ['draft']\n", "roles = ['cert']\n"][usize::from(*roles)];
            format!(
                "[[rule]]\npaths = [{}]\nanswer = '{answer}'\n{tools}{roles}",
                paths.join(", ")
            )
        })
        .collect();
    policy(&text)
}

/// Judges by the naive matcher.
fn naively(rules: &[Made], caller: Caller<'_>, text: &str) -> String {
    let about = |(_, _, tools, roles): &Made| {
        let tool = match tools {
            0 => true,
            1 => caller.group == Group::Mutate,
            _ => ["read_file", "move_file"].contains(&caller.tool),
        };
        tool && [true, caller.role == Role::Draft, caller.role == Role::Cert][usize::from(*roles)]
    };
    let first = rules
        .iter()
        .position(|rule| about(rule) && rule.0.iter().any(|glob| naive(glob, text)));
    match first.map(|at| (at + 1, rules[at].1)) {
        None | Some((_, 0)) => "allow".to_owned(),
        Some((number, 1)) => format!("ask {number}"),
        Some((number, _)) => format!("deny {number}"),
    }
}

fn callers() -> impl Strategy<Value = Caller<'static>> {
    let tools = prop::sample::select(TOOLS);
    (tools, any::<bool>()).prop_map(|(tool, cert)| Caller {
        tool,
        group: if tool == "read_file" {
            Group::Read
        } else {
            Group::Mutate
        },
        role: if cert { Role::Cert } else { Role::Draft },
    })
}

proptest! {
    #[test]
    fn a_policy_judges_as_the_naive_reference_does(rules in rules(), caller in callers(), text in paths()) {
        let policy = made(&rules);
        prop_assert_eq!(at(&policy, caller, &text), naively(&rules, caller, &text));
    }

    /// What is said of a directory that could not be looked through is never laxer than of anything in it.
    #[test]
    fn an_unseen_directory_is_judged_no_laxer_than_what_could_be_in_it(
        rules in rules(), caller in callers(), directory in paths(), inside in paths(),
    ) {
        let policy = made(&rules);
        let could = policy.could_be_inside(caller, &path(&directory));
        let is = policy.at(caller, &path(&format!("{directory}/{inside}")));
        prop_assert!(could.rank() >= is.rank(), "{directory} {inside}: {could:?} {is:?}");
        let whole = policy.as_directory(caller, directory.as_bytes());
        prop_assert!(could.rank() >= whole.rank());
    }

    /// What is said of a command is never laxer than of anything that it could read or change by a tool.
    #[test]
    fn a_command_is_judged_no_laxer_than_any_place(rules in rules(), caller in callers(), text in paths()) {
        let policy = made(&rules);
        let anywhere = policy.judge(caller, [Touched::Everything]).verdict;
        for group in [Group::Read, Group::Mutate] {
            let is = policy.at(Caller { group, ..caller }, &path(&text));
            prop_assert!(is == Verdict::Git || anywhere.rank() >= is.rank(), "{anywhere:?} {is:?}");
        }
    }

    /// The strictest verdict of all places is the verdict of the call, in whatever order they come.
    #[test]
    fn a_call_gets_the_strictest_verdict_of_its_places(
        rules in rules(), caller in callers(), texts in prop::collection::vec(paths(), 1..5),
    ) {
        let policy = made(&rules);
        let all: Vec<RelPath> = texts.iter().map(|text| path(text)).collect();
        let strictest = all.iter().map(|path| policy.at(caller, path).rank()).max();
        let forth = policy.judge(caller, all.iter().map(Touched::Path));
        let back = policy.judge(caller, all.iter().rev().map(Touched::Path));
        prop_assert_eq!(Some(forth.verdict.rank()), strictest);
        prop_assert_eq!(Some(back.verdict.rank()), strictest);
    }

    #[test]
    fn no_text_breaks_the_parser(text in "[\\[\\]a-z\"'=\\n*/\\\\. ]{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..30)) {
        drop(Policy::parse(&text, TOOLS));
        if let Ok(glob) = PathGlob::try_from(String::from_utf8_lossy(&bytes).into_owned()) {
            let matched = glob.exact.matches(&bytes);
            prop_assert!(!matched || (0..bytes.len()).all(|n| glob.exact.could_match_beyond(&bytes[..n])));
        }
    }
}
