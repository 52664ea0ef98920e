use super::listed::{Effects, KeyArgument};
use super::*;

fn fs() -> UpstreamName {
    UpstreamName::parse("fs").unwrap()
}

#[test]
fn a_name_is_short_and_plain() {
    for good in ["a", "fs", "my-server-2", "abcdefghijklmnop"] {
        assert_eq!(UpstreamName::parse(good).unwrap().as_str(), good);
    }
    for wrong in ["", "A", "1a", "-a", "a_b", "a.b", "ä", "abcdefghijklmnopq", "a b"] {
        assert_eq!(
            UpstreamName::parse(wrong).unwrap_err().code,
            Code::BadInput,
            "{wrong}"
        );
    }
}

#[test]
fn a_tool_has_a_name_here_that_every_client_takes() {
    assert_eq!(fs().exposed("write_file"), "fs__write_file");
    let long = "x".repeat(200);
    let names = ["a.b", "a/b", "a_b", "é", "", long.as_str(), &long[1..], "x y"];
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        let here = fs().exposed(name);
        assert!(here.len() <= LONGEST, "{here}");
        assert!(here.starts_with("fs__"), "{here}");
        assert!(
            here.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'),
            "{here}"
        );
        assert!(seen.insert(here.clone()), "{here} comes twice");
        assert_eq!(server_of(&here), Some(fs()));
    }
    // At the very bound it stays as it is.
    let most = "x".repeat(LONGEST - 4);
    assert_eq!(fs().exposed(&most), format!("fs__{most}"));
    for other in ["write_file", "fs__", "__x", "F__x", "fs_x"] {
        assert_eq!(server_of(other), None, "{other}");
    }
}

#[test]
fn what_does_not_say_that_it_reads_changes() {
    let tools = [
        json!({"name": "r", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}}),
        json!({"name": "w", "inputSchema": {"type": "object", "properties": {"a": {}}, "additionalProperties": false}}),
        json!({"name": "odd", "inputSchema": {}, "annotations": {"readOnlyHint": "true", "destructiveHint": false}}),
        json!({"name": "own", "inputSchema": {"properties": {"idempotency_key": {"type": "integer"}}}}),
        json!({"name": "w", "inputSchema": {"type": "object"}}),
        json!({"name": "no schema"}),
        json!({"name": 7, "inputSchema": {}}),
        json!("none"),
    ];
    let listed = list(&fs(), &tools);
    let names: Vec<&str> = listed.keys().map(String::as_str).collect();
    assert_eq!(names, ["fs__odd", "fs__own", "fs__r", "fs__w"]);
    assert_eq!(listed["fs__r"].effect, Effects::Reads);
    for changing in ["fs__odd", "fs__own", "fs__w"] {
        assert_eq!(listed[changing].effect, Effects::Changes, "{changing}");
    }
    let region = json!({"name": "m", "inputSchema": {"properties": {
        "region": {"type": "string", "x-mcp-header": "Region"}, "odd": {"x-mcp-header": "a b"}}}});
    let told = &list(&fs(), [&region])["fs__m"];
    assert_eq!(
        told.mirrored,
        [("region".to_owned(), "mcp-param-region".to_owned())]
    );
    assert!(!told.described.to_string().contains("x-mcp-header"));
    let w = &listed["fs__w"].described;
    assert_eq!(
        w["inputSchema"]["properties"]["idempotency_key"]["type"],
        "string"
    );
    assert_eq!(w["annotations"]["destructiveHint"], true);
    assert_eq!(
        listed["fs__odd"].described["annotations"]["destructiveHint"],
        false
    );
    assert_eq!(listed["fs__odd"].described["annotations"]["readOnlyHint"], false);
    assert_eq!(listed["fs__own"].key, KeyArgument::Own);
    let own = &listed["fs__own"].described["inputSchema"]["properties"]["idempotency_key"];
    assert_eq!(own["type"], "integer");
    assert_eq!(
        listed["fs__r"].described["inputSchema"].get("properties"),
        None,
        "a tool that reads takes no key"
    );
}

#[test]
fn a_refusal_of_ours_fits_the_schema_of_their_answers() {
    let tool = json!({"name": "t", "inputSchema": {}, "outputSchema": {
        "type": "object", "$defs": {"x": {"type": "string"}}, "required": ["content"],
        "properties": {"content": {"$ref": "#/$defs/x"}}, "additionalProperties": false}});
    let listed = list(&fs(), [&tool]);
    let schema = &listed["fs__t"].described["outputSchema"];
    assert_eq!(schema["$defs"]["x"]["type"], "string");
    assert_eq!(schema["type"], "object");
    assert_eq!(schema["anyOf"][0]["required"], json!(["content"]));
    assert_eq!(schema["anyOf"][1]["required"], json!(["error"]));
    assert_eq!(schema["anyOf"][0].get("$defs"), None);
}

#[test]
fn what_is_too_long_is_kept_as_that_it_was() {
    let whole = json!({"content": [], "isError": false});
    let kept = Heard::keep(Said::Result, &whole, 1000);
    assert_eq!((kept.value(), kept.left_out_bytes), (whole, None));
    let long = json!({"content": [{"type": "text", "text": "x".repeat(2000)}], "isError": true});
    let kept = Heard::keep(Said::Result, &long, 1000);
    assert_eq!(kept.left_out_bytes, Some(long.to_string().len() as u64));
    assert_eq!(kept.value()["isError"], true);
    assert!(kept.text.len() < 1000);
    let kept = Heard::keep(
        Said::Error,
        &json!({"code": -5, "message": "x".repeat(2000)}),
        1000,
    );
    assert_eq!(kept.value()["code"], -5);
    assert!(kept.value()["message"].as_str().unwrap().contains("left out"));
}

#[test]
fn an_answer_on_the_disk() {
    let heard = Heard::keep(Said::Result, &json!({"content": []}), 100);
    let text = serde_json::to_string(&heard).unwrap();
    assert_eq!(text, r#"{"said":"result","text":"{\"content\":[]}"}"#);
    assert_eq!(serde_json::from_str::<Heard>(&text).unwrap(), heard);
}
