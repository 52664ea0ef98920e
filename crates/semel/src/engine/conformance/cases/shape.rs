//! What a request looks like: empty, a probe's, without a key, spelt otherwise, ambiguous.

use super::key::seen;
use super::{Bench, Case, always, delete, write};
use crate::engine::conformance::effect::Watched;
use crate::engine::conformance::respell;
use crate::engine::conformance::table::Want;
use crate::engine::trial::Told;
use crate::engine::trial::http::{request, send};
use std::collections::BTreeSet;

pub(super) const EMPTY_BODY: Case = Case {
    name: "empty_body",
    expected: "bodies that ask for nothing, under the key of a delete and under a new one: refused; none means \"the \
               last call\"",
    unfit: always,
    play: |bench, tale| {
        let (workspace, key) = (bench.open()?, bench.fresh("k"));
        let mut file = Watched::deleted(&workspace.files, bench.fresh("empty"))?;
        tale.due = 1;
        bench.delete(tale, &workspace, &mut file, &key)?;
        let mut heard = BTreeSet::new();
        for body in ["", "{}", " { } ", "[]", "null", "\"\""] {
            for key in [key.clone(), bench.fresh("k")] {
                let answer = bench
                    .speak()
                    .with_body(&delete(&file.name, Some(&key)), &workspace, body)?;
                tale.judge(&format!("body {body:?}"), &answer, Want::NothingAsked);
                heard.insert(answer.told);
                file.look()?;
            }
        }
        tale.tell(format!("empty bodies: {}", all_of(heard)));
        seen(tale, [&mut file])
    },
};

/// Where probes and crawlers ask, whatever the target.
const ELSEWHERE: [&str; 7] = [
    "/", "/health", "/healthz", "/livez", "/ready", "/readyz", "/metrics",
];

pub(super) const PROBES: Case = Case {
    name: "probe_shaped_requests",
    expected: "after a delete, GET, HEAD and POST {} on every known route, bare and with the headers of the delete: \
               no further effect",
    unfit: always,
    play: |bench, tale| {
        let workspace = bench.open()?;
        let routes = routes(bench)?;
        let (mut sent, mut told) = (0, BTreeSet::new());
        for route in &routes {
            // A new delete for each route: what one probe left behind is not to hide what the next one does.
            let key = bench.fresh("k");
            let mut file = Watched::deleted(&workspace.files, bench.fresh("probe"))?;
            let (name, speak) = (file.name.clone(), bench.speak());
            let call = delete(&name, Some(&key));
            tale.due += 1;
            let heard = speak.call(&call, &workspace)?;
            tale.judge("a delete", &heard, Want::Done);
            told.insert(heard.told);
            file.look()?;
            for (method, body) in [("GET", ""), ("HEAD", ""), ("POST", "{}")] {
                let bare = request(speak.host, (method, route), &[], body.as_bytes());
                let dressed = speak.shaped(&call, &workspace, (method, route), body)?;
                for raw in [bare, dressed] {
                    // What a probe is told is its own affair.
                    drop(send(speak.host, &raw));
                    sent += 1;
                    if file.look()? > 0 {
                        tale.harm(format!("{method} {route} deleted the file again"));
                    }
                }
            }
            seen(tale, [&mut file])?;
        }
        tale.tell(format!(
            "{} deletes: {}; {sent} probes",
            routes.len(),
            all_of(told)
        ));
        Ok(())
    },
};

fn routes(bench: &Bench<'_>) -> Told<BTreeSet<String>> {
    let adapter = bench.target.adapter;
    let mut routes: BTreeSet<String> = adapter.calls.routes().into_iter().map(str::to_owned).collect();
    routes.extend(adapter.probes.routes.iter().cloned());
    routes.extend(ELSEWHERE.map(str::to_owned));
    if let Some(from) = &adapter.probes.routes_from {
        let host = &bench.target.host;
        let document = send(host, &request(host, ("GET", from), &[], b""))?.json();
        let paths = document["paths"].as_object().filter(|paths| !paths.is_empty());
        let paths = paths.ok_or_else(|| format!("{from} lists no paths"))?;
        // A place in a route is filled with anything.
        routes.extend(paths.keys().map(|path| path.replace(['{', '}'], "")));
    }
    Ok(routes)
}

pub(super) const MISSING_KEY: Case = Case {
    name: "missing_key",
    expected: "a delete without a key, sent twice as by a client that retries: refused, no effect",
    unfit: always,
    play: |bench, tale| {
        let workspace = bench.open()?;
        let mut file = Watched::deleted(&workspace.files, bench.fresh("no-key"))?;
        let name = file.name.clone();
        for _ in 0..2 {
            let heard = bench.speak().call(&delete(&name, None), &workspace)?;
            tale.hear("without a key", &heard, Want::Refused);
            file.look()?;
        }
        seen(tale, [&mut file])
    },
};

pub(super) const RESPELT: Case = Case {
    name: "respelt_json",
    expected: "the same JSON spelt otherwise (members in another order, white space, unicode escapes): replays, one \
               effect",
    unfit: |bench| {
        let body = &speaking(bench).body;
        let json = !respell::others(body).is_empty();
        (!json).then(|| "the body of the call is no JSON object".to_owned())
    },
    play: |bench, tale| {
        let (workspace, key, name) = (bench.open()?, bench.fresh("k"), bench.fresh("respelt"));
        let (call, mut file) = if bench.target.adapter.calls.write.is_some() {
            let file = Watched::written(&workspace.files, name.clone(), "a text")?;
            (write(&name, &key, "a text"), file)
        } else {
            (
                delete(&name, Some(&key)),
                Watched::deleted(&workspace.files, name.clone())?,
            )
        };
        tale.due = 1;
        let heard = bench.speak().call(&call, &workspace)?;
        tale.hear("first", &heard, Want::Done);
        file.look()?;
        for (how, body) in respell::others(&bench.speak().body(&call, &workspace)?) {
            let heard = bench.speak().with_body(&call, &workspace, &body)?;
            tale.hear(how, &heard, Want::Replayed);
            file.look()?;
        }
        seen(tale, [&mut file])
    },
};

/// Gives the call with which re-spelling is played: the one that has more to say.
fn speaking<'b>(bench: &Bench<'b>) -> &'b crate::engine::conformance::adapter::Template {
    let calls = &bench.target.adapter.calls;
    calls.write.as_ref().unwrap_or(&calls.delete)
}

pub(super) const DUPLICATE_MEMBERS: Case = Case {
    name: "duplicate_members",
    expected: "a JSON object that names its path twice, which two readers read differently: refused, no effect",
    unfit: |bench| {
        let body = &bench.target.adapter.calls.delete.body;
        let none = respell::doubled(body, "{path}", "x").is_empty();
        none.then(|| "the body of calls.delete is no JSON object with a member {path}".to_owned())
    },
    play: |bench, tale| {
        let workspace = bench.open()?;
        let mut one = Watched::deleted(&workspace.files, bench.fresh("double"))?;
        let mut two = Watched::deleted(&workspace.files, bench.fresh("double"))?;
        let (name, other) = (one.name.clone(), two.name.clone());
        for way in 0..respell::DOUBLINGS {
            let key = bench.fresh("k");
            let call = delete(&name, Some(&key));
            let body = bench.speak().body(&call, &workspace)?;
            for (how, body) in respell::doubled(&body, &name, &other)
                .into_iter()
                .skip(way)
                .take(1)
            {
                let heard = bench.speak().with_body(&call, &workspace, &body)?;
                tale.hear(how, &heard, Want::Refused);
                one.look()?;
                two.look()?;
            }
        }
        seen(tale, [&mut one, &mut two])
    },
};

/// Tells distinct answers in one text.
pub(super) fn all_of(heard: BTreeSet<String>) -> String {
    heard.into_iter().collect::<Vec<_>>().join(", ")
}
