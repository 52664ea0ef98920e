//! Arguments as people write them on a command line: `name=value`, each read by its form.
//!
//! It does *not* say whether they are all there, or fit together: that is for whoever is called.

use super::{Field, Form, Tool, Type};
use semel_core::{Code, Refusal};
use serde_json::{Map, Value, json};

impl Tool {
    /// Makes the arguments of a call from `name=value` texts. A list takes the same name again.
    ///
    /// # Errors
    /// `usage` for a text without `=`, a name that comes twice, or a value that is not of the argument's form.
    pub(crate) fn spelt(self, texts: &[String]) -> Result<Value, Refusal> {
        let mut arguments = Map::new();
        for text in texts {
            let Some((name, value)) = text.split_once('=') else {
                return Err(usage("an argument is written as NAME=VALUE", text));
            };
            let field = self.fields().iter().find(|field| field.answers_to(name));
            // An unknown name goes on as text: the daemon refuses it by name.
            let form = field.map_or(Form::Text, |field| field.form);
            let value = form.read(value).map_err(|why| usage(why, text))?;
            match (arguments.get_mut(name), value) {
                (None, value) => {
                    arguments.insert(name.to_owned(), value);
                }
                (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
                (Some(before @ Value::String(_)), more @ Value::String(_)) if form.takes_many() => {
                    *before = json!([before, more]);
                }
                (Some(Value::Array(list)), more) if form.takes_many() => list.push(more),
                (Some(_), _) => return Err(usage("an argument comes twice", text)),
            }
        }
        Ok(Value::Object(arguments))
    }
}

fn usage(why: &str, text: &str) -> Refusal {
    Refusal::new(Code::Usage, why).name(text)
}

impl Field {
    fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

impl Form {
    /// Says whether one value, or a list of them, may come.
    fn takes_many(self) -> bool {
        self.of_type() == Type::TextOrTexts
    }

    fn read(self, text: &str) -> Result<Value, &'static str> {
        match self.of_type() {
            Type::Text | Type::TextOrTexts => Ok(json!(text)),
            // One element; the same name again gives the next.
            Type::Texts => Ok(json!([text])),
            Type::Flag => match text {
                "true" => Ok(json!(true)),
                "false" => Ok(json!(false)),
                _ => Err("it is true or false"),
            },
            Type::Whole => match text.parse::<i64>() {
                Ok(n) => Ok(json!(n)),
                Err(_) => Err("it is a whole number"),
            },
            Type::Pair | Type::Objects | Type::Named => {
                serde_json::from_str(text).map_err(|_| "it is written as JSON, such as [1,20]")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(tool: Tool, texts: &[&str]) -> Result<Value, Refusal> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        tool.spelt(&texts)
    }

    #[test]
    fn each_argument_is_read_by_its_form() {
        let read = spelt(
            Tool::ReadFile,
            &["file_path=a=b", "limit=20", "digest=true", "view_range=[1,-1]"],
        );
        let wanted = json!({"file_path": "a=b", "limit": 20, "digest": true, "view_range": [1, -1]});
        assert_eq!(read.unwrap(), wanted);
        let list = spelt(Tool::Grep, &["pattern=1", "glob=*.rs", "glob=*.c", "glob=*.h"]).unwrap();
        assert_eq!(list, json!({"pattern": "1", "glob": ["*.rs", "*.c", "*.h"]}));
        let command = spelt(
            Tool::RunCommand,
            &["argv=make", "argv=[test]", r#"env={"A":"b"}"#],
        )
        .unwrap();
        assert_eq!(command, json!({"argv": ["make", "[test]"], "env": {"A": "b"}}));
        let unknown = spelt(Tool::ReadFile, &["nope=1"]).unwrap();
        assert_eq!(unknown, json!({"nope": "1"}));
        for texts in [
            &["path"][..],
            &["limit=x"],
            &["digest=yes"],
            &["path=a", "path=b"],
            &["view_range=x"],
        ] {
            let refused = spelt(Tool::ReadFile, texts).unwrap_err();
            assert_eq!(refused.code, Code::Usage, "{texts:?}");
        }
    }
}
