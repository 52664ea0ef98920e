//! One call of each tool, as a document shows it.

use super::Tool;
use serde_json::{Value, json};

impl Tool {
    /// Gives arguments that the tool takes.
    pub(crate) fn example(self) -> Value {
        match self {
            Tool::ReadFile => json!({"path": "docs/notes.md", "offset": 1, "limit": 40}),
            Tool::ListDirectory => json!({"path": ".", "depth": 2}),
            Tool::GetFileInfo => json!({"path": "docs/notes.md", "digest": true}),
            Tool::SearchFiles => json!({"pattern": ["*.md", "*.rs"], "exclude": "target"}),
            Tool::Grep => json!({"pattern": "^fn [a-z_]+", "glob": "*.rs", "context": 2}),
            Tool::WriteFile => {
                json!({"path": "docs/notes.md", "content": "one\ntwo\n", "expected_sha256": "absent"})
            }
            Tool::EditFile => json!({"path": "docs/notes.md", "old_string": "one", "new_string": "three"}),
            Tool::ApplyPatch => {
                json!({"patch": "*** Begin Patch\n*** Add File: docs/more.md\n+four\n*** End Patch\n"})
            }
            Tool::DeleteFile => json!({"path": "docs/notes.md"}),
            Tool::DeleteDirectory => json!({"path": "docs", "recursive": true}),
            Tool::MoveFile => json!({"source": "docs/notes.md", "destination": "notes.md"}),
            Tool::CreateDirectory => json!({"path": "docs/old"}),
            Tool::SetMode => json!({"path": "docs/notes.md", "mode": "644"}),
            Tool::RunCommand => json!({"argv": ["echo", "done"], "cwd": ".", "timeout_ms": 60_000}),
            Tool::GetReceipt => json!({"key": "del-1"}),
            Tool::Undo => json!({}),
        }
    }
}
