mod schema;

use super::*;

/// Takes `/v/tree` for the tree of the volume.
fn in_tree(path: &[u8]) -> Option<Vec<u8>> {
    path.strip_prefix(b"/v/tree").map(|rest| [b".", rest].concat())
}

fn print(tool: Tool, arguments: Value) -> Result<Fingerprint, Refusal> {
    let Value::Object(map) = arguments else {
        panic!("an object")
    };
    Ok(understand(tool, map, &in_tree)?.fingerprint)
}

#[test]
fn equal_calls_have_one_fingerprint() {
    let first = print(Tool::WriteFile, json!({"path": "a/b", "content": "hé"})).unwrap();
    for same in [
        json!({"content": "hé", "file_path": "./a//x/../b"}),
        json!({"path_b64": "YS9i", "content_b64": "aMOp"}),
        json!({"filePath": "a/b/", "contents": "hé"}),
        json!({"path": "/v/tree/a/b", "content": "hé"}),
    ] {
        assert_eq!(print(Tool::WriteFile, same.clone()).unwrap(), first, "{same}");
    }
    for other in [
        json!({"path": "a/c", "content": "hé"}),
        json!({"path": "a/b", "content": "he"}),
        json!({"path": "a/b", "content": "hé", "expected_sha256": "absent"}),
    ] {
        assert_ne!(print(Tool::WriteFile, other.clone()).unwrap(), first, "{other}");
    }
}

#[test]
fn a_wrong_type_is_told_with_the_right_one() {
    for (tool, arguments, right) in [
        (
            Tool::SetMode,
            json!({"path": "a", "mode": 755}),
            "a text, such as \"755\"",
        ),
        (
            Tool::ReadFile,
            json!({"path": "a", "byte_offset": "1"}),
            "a whole number",
        ),
        (Tool::WriteFile, json!({"path": "a", "content": 1}), "a text"),
        (
            Tool::EditFile,
            json!({"path": "a", "edits": ["a"]}),
            "a list of objects",
        ),
        (
            Tool::DeleteDirectory,
            json!({"path": "a", "recursive": "yes"}),
            "true or false",
        ),
    ] {
        let refusal = print(tool, arguments).unwrap_err();
        assert_eq!(refusal.reason.as_deref(), Some("wrong_type"), "{refusal:?}");
        assert!(refusal.why.ends_with(&format!("it is {right}")), "{refusal:?}");
    }
}

#[test]
fn malformed_arguments_are_named() {
    for (tool, arguments, name) in [
        (
            Tool::WriteFile,
            json!({"path": "a", "content": "x", "mode": "7"}),
            "mode",
        ),
        (Tool::WriteFile, json!({"path": "a"}), "content"),
        (Tool::WriteFile, json!({"content": "a"}), "path"),
        (Tool::WriteFile, json!({"path": 1, "content": "a"}), "path"),
        (
            Tool::WriteFile,
            json!({"path": "a", "file_path": "a", "content": "a"}),
            "file_path",
        ),
        (
            Tool::WriteFile,
            json!({"path": "a", "content": "a", "content_b64": "YQ=="}),
            "content_b64",
        ),
        (
            Tool::WriteFile,
            json!({"path": "a", "content_b64": "%"}),
            "content_b64",
        ),
        (
            Tool::DeleteFile,
            json!({"path": "a", "expected_sha256": "absent"}),
            "expected_sha256",
        ),
        (
            Tool::DeleteFile,
            json!({"path": "a", "expected_sha256": "AB"}),
            "expected_sha256",
        ),
        (Tool::GetReceipt, json!({"key": ""}), "key"),
    ] {
        let refusal = print(tool, arguments.clone()).unwrap_err();
        assert_eq!(refusal.code, Code::BadInput, "{arguments}");
        assert!(
            refusal.names.iter().any(|n| n == name),
            "{arguments}: {refusal:?}"
        );
    }
}

#[test]
fn an_escaping_path_is_kept_for_its_turn() {
    let Value::Object(map) = json!({"path": "../x", "content": ""}) else {
        panic!("an object")
    };
    let understood = understand(Tool::WriteFile, map, &in_tree).unwrap();
    assert_eq!(understood.path.unwrap_err().code, Code::PathEscapesRoot);
}
