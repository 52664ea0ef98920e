//! The tools of a server that write, edit and read files, found by their names and arguments.

use super::Told;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::path::PathBuf;

/// Are the tools that the cases need.
#[derive(Debug)]
pub(super) struct Tools {
    /// Writes a whole file.
    pub(super) write: Write,
    /// Replaces text in a file; `None` where there is none.
    edit: Option<Edit>,
    /// Reads a file; `None` where there is none.
    read: Option<Read>,
    root: RefCell<Option<PathBuf>>,
}

/// Is a call: a tool with its arguments.
#[derive(Clone, Debug)]
pub(super) struct Call(pub(super) Value);

#[derive(Debug)]
pub(super) struct Write {
    tool: String,
    path: String,
    content: String,
}

#[derive(Debug)]
struct Read {
    tool: String,
    path: String,
}

#[derive(Debug)]
struct Edit {
    tool: String,
    path: String,
    /// The argument that holds a list of replacements, where there is one.
    list: Option<String>,
    old: String,
    new: String,
}

const WRITES: &[&str] = &[
    "write_file",
    "write",
    "create_file",
    "save_file",
    "write_text_file",
];
const EDITS: &[&str] = &[
    "edit_file",
    "edit",
    "str_replace",
    "replace_in_file",
    "replace",
    "edit_text_file",
];
const READS: &[&str] = &["read_text_file", "read_file", "read", "get_file_contents", "view"];
const PATHS: &[&str] = &["path", "file_path", "filepath", "filePath", "filename", "file"];
const CONTENTS: &[&str] = &["content", "contents", "file_text", "text", "data"];
const OLDS: &[&str] = &[
    "old_string",
    "oldText",
    "old_text",
    "old_str",
    "oldString",
    "search",
];
const NEWS: &[&str] = &[
    "new_string",
    "newText",
    "new_text",
    "new_str",
    "newString",
    "replace",
];

impl Tools {
    /// Finds them in what a server lists.
    ///
    /// # Errors
    /// Where none writes a file.
    pub(super) fn find(listed: &[Value]) -> Told<Self> {
        let write = find(listed, WRITES, |tool, properties| {
            Some(Write {
                tool,
                path: one_of(properties, PATHS)?,
                content: one_of(properties, CONTENTS)?,
            })
        });
        let names: Vec<&str> = listed.iter().filter_map(|tool| tool["name"].as_str()).collect();
        let write =
            write.ok_or_else(|| format!("no tool writes a whole file, among {}", names.join(", ")))?;
        Ok(Self {
            write,
            edit: find(listed, EDITS, edit),
            read: find(listed, READS, |tool, properties| {
                let path = one_of(properties, PATHS)?;
                Some(Read { tool, path })
            }),
            root: RefCell::default(),
        })
    }

    /// Hears where files lie that are named by whole paths.
    pub(super) fn rooted(&self, root: Option<PathBuf>) {
        *self.root.borrow_mut() = root;
    }

    fn place(&self, name: &str) -> String {
        match &*self.root.borrow() {
            Some(root) => root.join(name).display().to_string(),
            None => name.to_owned(),
        }
    }

    pub(super) fn edits(&self) -> bool {
        self.edit.is_some()
    }

    /// Makes a call that writes a file.
    pub(super) fn write(&self, name: &str, text: &str) -> Call {
        self.write.call(&self.place(name), text)
    }

    /// Makes a call that reads a file.
    pub(super) fn read(&self, name: &str) -> Option<Call> {
        let read = self.read.as_ref()?;
        Some(call(&read.tool, [(read.path.as_str(), json!(self.place(name)))]))
    }

    /// Makes a call that replaces text in a file.
    pub(super) fn edit(&self, name: &str, old: &str, new: &str) -> Told<Call> {
        let edit = self.edit.as_ref().ok_or("no tool edits a file")?;
        let path = (edit.path.as_str(), json!(self.place(name)));
        let pair = [(edit.old.as_str(), json!(old)), (edit.new.as_str(), json!(new))];
        Ok(match &edit.list {
            None => call(&edit.tool, [path].into_iter().chain(pair)),
            Some(list) => {
                let one: Map<String, Value> = pair
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect();
                call(&edit.tool, [path, (list.as_str(), json!([one]))])
            }
        })
    }
}

impl Write {
    /// Makes a call that writes a file by its path as it is.
    pub(super) fn call(&self, path: &str, text: &str) -> Call {
        call(
            &self.tool,
            [
                (self.path.as_str(), json!(path)),
                (self.content.as_str(), json!(text)),
            ],
        )
    }
}

fn call<'a>(tool: &str, arguments: impl IntoIterator<Item = (&'a str, Value)>) -> Call {
    let arguments: Map<String, Value> = arguments
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    Call(json!({"name": tool, "arguments": arguments}))
}

fn edit(tool: String, properties: &Map<String, Value>) -> Option<Edit> {
    let path = one_of(properties, PATHS)?;
    if let (Some(old), Some(new)) = (one_of(properties, OLDS), one_of(properties, NEWS)) {
        let list = None;
        return Some(Edit {
            tool,
            path,
            list,
            old,
            new,
        });
    }
    let (list, items) = properties.iter().find_map(|(name, property)| {
        let items = property.pointer("/items/properties")?.as_object()?;
        Some((name.clone(), items))
    })?;
    Some(Edit {
        tool,
        path,
        list: Some(list),
        old: one_of(items, OLDS)?,
        new: one_of(items, NEWS)?,
    })
}

/// Finds the first tool by the order of names, alone or behind a prefix, whose arguments fit.
fn find<T>(
    listed: &[Value],
    names: &[&str],
    fits: impl Fn(String, &Map<String, Value>) -> Option<T>,
) -> Option<T> {
    names.iter().find_map(|wanted| {
        listed.iter().find_map(|tool| {
            let name = tool["name"].as_str()?;
            let named = name == *wanted || name.rsplit_once("__").is_some_and(|(_, last)| last == *wanted);
            let schema = &tool["inputSchema"];
            let properties = schema["properties"].as_object().filter(|_| named)?;
            fits(name.to_owned(), &resolved(schema, properties))
        })
    })
}

/// Follows the references of arguments into the definitions of their schema.
fn resolved(schema: &Value, properties: &Map<String, Value>) -> Map<String, Value> {
    let follow = |value: &Value| match value["$ref"].as_str().and_then(|to| to.strip_prefix('#')) {
        Some(place) => schema.pointer(place).cloned().unwrap_or_default(),
        None => value.clone(),
    };
    let each = properties.iter().map(|(name, property)| {
        let mut property = follow(property);
        if let Some(items) = property.get("items").map(&follow) {
            property["items"] = items;
        }
        (name.clone(), property)
    });
    each.collect()
}

fn one_of(properties: &Map<String, Value>, names: &[&str]) -> Option<String> {
    let found = names.iter().find(|name| properties.contains_key(**name))?;
    Some((*found).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, schema: Value) -> Value {
        json!({"name": name, "inputSchema": schema})
    }

    #[test]
    fn tools_are_found_by_name_and_arguments() {
        let listed = [
            tool("read_file", json!({"properties": {"path": {}}})),
            tool(
                "fs__write_file",
                json!({"properties": {"path": {}, "content": {}}}),
            ),
            tool(
                "edit_file",
                json!({"$defs": {"e": {"properties": {"oldText": {}, "newText": {}}}},
                "properties": {"path": {}, "edits": {"type": "array", "items": {"$ref": "#/$defs/e"}}}}),
            ),
        ];
        let tools = Tools::find(&listed).unwrap();
        tools.rooted(Some("/r".into()));
        assert_eq!(
            tools.edit("a", "x", "y").unwrap().0,
            json!({"name": "edit_file", "arguments": {"path": "/r/a", "edits": [{"oldText": "x", "newText": "y"}]}})
        );
        assert_eq!(tools.write("a", "t").0["name"], "fs__write_file");
        assert!(tools.read("a").is_some());
        let flat = [
            tool("write", json!({"properties": {"file_path": {}, "content": {}}})),
            tool(
                "edit",
                json!({"properties": {"file_path": {}, "old_string": {}, "new_string": {}, "edits": {}}}),
            ),
        ];
        let tools = Tools::find(&flat).unwrap();
        let edit = tools.edit("a", "x", "y").unwrap().0;
        assert_eq!(
            edit["arguments"],
            json!({"file_path": "a", "old_string": "x", "new_string": "y"})
        );
        assert!(tools.read("a").is_none());
        assert!(Tools::find(&[tool("write_file", json!({"properties": {"path": {}}}))]).is_err());
    }
}
