//! The arguments of a call by their own names: aliases folded, each of the form that the table of tools gives it.

use super::super::tool::{Field, Form, NEW, OLD, REPLACE_ALL, Tool, Type};
use super::{Expected, missing};
use crate::limits;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use semel_core::canonical::LARGEST_INTEGER;
use semel_core::patch::{Edit, Occurrences};
use semel_core::{Code, Refusal, RelPath, Sha256};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Gives what an absolute path is beneath the tree of the caller's volume; `None` for one that lies elsewhere.
pub(crate) type InTree<'a> = &'a dyn Fn(&[u8]) -> Option<Vec<u8>>;

/// Holds the arguments by their own names.
pub(super) struct Values<'a> {
    given: Vec<(&'static str, Value)>,
    in_tree: InTree<'a>,
}

impl<'a> Values<'a> {
    /// Folds the arguments of a tool.
    ///
    /// # Errors
    /// `bad_input` naming every unknown, doubled or ill-formed argument.
    pub(super) fn fold(
        tool: Tool,
        mut arguments: Map<String, Value>,
        in_tree: InTree<'a>,
    ) -> Result<Self, Refusal> {
        let values = fold_fields(tool.fields(), &mut arguments)?;
        if !arguments.is_empty() {
            let why = format!("{} takes no such argument", tool.name());
            return Err(unknown(why, &arguments));
        }
        for group in tool.rivals() {
            let came = |name: &&str| values.iter().any(|(known, _)| known == name);
            let both: Vec<&str> = group.iter().copied().filter(|name| came(name)).collect();
            if both.len() > 1 {
                return Err(
                    Refusal::new(Code::BadInput, "at most one of these arguments may come")
                        .reason("given_twice")
                        .names(both),
                );
            }
        }
        Ok(Self {
            given: values,
            in_tree,
        })
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.given.iter().position(|(known, _)| *known == name)?;
        Some(self.given.swap_remove(at).1)
    }

    /// Takes a text.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        match self.take(name)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Takes a flag; false where it is left out.
    pub(super) fn flag(&mut self, name: &str) -> Flag {
        match self.take(name) {
            Some(Value::Bool(true)) => Flag::Set,
            _ => Flag::Unset,
        }
    }

    /// Takes a number; its bounds were looked at when it was folded.
    pub(super) fn count(&mut self, name: &str) -> Option<u64> {
        let value = self.take(name)?;
        u64::try_from(whole(&value)?).ok()
    }

    /// Takes a list of texts, which may come as one text.
    ///
    /// # Errors
    /// `bad_input` past the bound of a list.
    pub(super) fn texts(&mut self, name: &str) -> Result<Vec<String>, Refusal> {
        let texts: Vec<String> = match self.take(name) {
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(list)) => list
                .into_iter()
                .filter_map(|text| text.as_str().map(str::to_owned))
                .collect(),
            _ => Vec::new(),
        };
        if texts.len() > limits::PATTERNS {
            let why = format!("a list has at most {} patterns", limits::PATTERNS);
            return Err(Refusal::new(Code::BadInput, why).name(name));
        }
        Ok(texts)
    }

    /// Takes a first and a last line; `None` in the last place is the end of the file.
    ///
    /// # Errors
    /// `bad_input` where they are no such lines.
    pub(super) fn lines(&mut self, name: &str) -> Result<Option<(u64, Option<u64>)>, Refusal> {
        let Some(Value::Array(pair)) = self.take(name) else {
            return Ok(None);
        };
        let pair: Vec<Option<i128>> = pair.iter().map(whole).collect();
        let lines = match pair[..] {
            [Some(first), Some(-1)] => u64::try_from(first).ok().map(|first| (first, None)),
            [Some(first), Some(last)] if last >= first => {
                let last = u64::try_from(last).ok();
                u64::try_from(first).ok().map(|first| (first, last))
            }
            _ => None,
        };
        match lines.filter(|(first, _)| *first > 0) {
            Some(lines) => Ok(Some(lines)),
            None => {
                let why = "a first and a last line, counted from 1, -1 for the last one of the file";
                Err(Refusal::new(Code::BadInput, why).name(name))
            }
        }
    }

    /// Takes the bytes of a path. An absolute one that lies in the tree of the volume is what it is beneath it: many
    /// who call know no others.
    ///
    /// # Errors
    /// `bad_input`.
    pub(super) fn path(&mut self, name: &str, name_b64: &str) -> Result<Vec<u8>, Refusal> {
        let bytes = self.bytes(name, name_b64)?;
        let beneath = bytes.starts_with(b"/").then(|| (self.in_tree)(&bytes));
        Ok(beneath.flatten().unwrap_or(bytes))
    }

    /// Takes the bytes of a path that may be left out: then it is the root.
    ///
    /// # Errors
    /// `bad_input`.
    pub(super) fn path_or_root(&mut self, name: &str, name_b64: &str) -> Result<Vec<u8>, Refusal> {
        let came = |known: &str| known == name || known == name_b64;
        if self.given.iter().any(|(known, _)| came(known)) {
            return self.path(name, name_b64);
        }
        Ok(b".".to_vec())
    }

    /// Takes the bytes of an argument that comes plain or as base64, but not as both.
    ///
    /// # Errors
    /// `bad_input`.
    pub(super) fn bytes(&mut self, name: &str, name_b64: &str) -> Result<Vec<u8>, Refusal> {
        match (self.text(name), self.text(name_b64)) {
            (Some(text), None) => Ok(text.into_bytes()),
            (None, Some(text)) => BASE64_STANDARD
                .decode(text)
                .map_err(|_| Refusal::new(Code::BadInput, "not base64").name(name_b64)),
            (None, None) => Err(missing(name)),
            (Some(_), Some(_)) => Err(Refusal::new(Code::BadInput, "one argument comes in two forms")
                .reason("given_twice")
                .names([name, name_b64])),
        }
    }

    /// Takes a list of texts.
    pub(super) fn words(&mut self, name: &str) -> Option<Vec<String>> {
        let Value::Array(list) = self.take(name)? else {
            return None;
        };
        let texts = list.into_iter().map(|item| match item {
            Value::String(text) => Some(text),
            _ => None,
        });
        texts.collect()
    }

    /// Takes texts by name; none where they are left out.
    pub(super) fn variables(&mut self, name: &str) -> BTreeMap<String, String> {
        let Some(Value::Object(each)) = self.take(name) else {
            return BTreeMap::new();
        };
        let texts = each.into_iter().filter_map(|(name, value)| match value {
            Value::String(text) => Some((name, text)),
            _ => None,
        });
        texts.collect()
    }

    /// Takes what is expected of one file.
    ///
    /// # Errors
    /// `bad_input`.
    pub(super) fn expected(&mut self) -> Result<Expected, Refusal> {
        match self.text("expected_sha256") {
            None => Ok(Expected::Anything),
            Some(text) => digest(&text),
        }
    }

    /// Takes what is expected of each of many files.
    ///
    /// # Errors
    /// `bad_input`.
    pub(super) fn expected_each(&mut self) -> Result<BTreeMap<RelPath, Expected>, Refusal> {
        let Some(Value::Object(each)) = self.take("expected_sha256") else {
            return Ok(BTreeMap::new());
        };
        let mut expected = BTreeMap::new();
        for (path, wanted) in each {
            let wanted = digest(wanted.as_str().unwrap_or_default())?;
            let parsed = RelPath::parse(path.as_bytes())?;
            if expected.insert(parsed, wanted).is_some() {
                return Err(Refusal::new(Code::BadInput, "one path comes twice")
                    .reason("given_twice")
                    .name(path));
            }
        }
        Ok(expected)
    }

    /// Takes permissions.
    ///
    /// # Errors
    /// `bad_input`.
    pub(super) fn mode(&mut self) -> Result<u32, Refusal> {
        let text = self.text("mode").ok_or_else(|| missing("mode"))?;
        let digits = text
            .strip_prefix('0')
            .filter(|rest| rest.len() == 3)
            .unwrap_or(&text);
        let octal = digits.len() == 3 && digits.bytes().all(|b| (b'0'..=b'7').contains(&b));
        octal
            .then(|| u32::from_str_radix(digits, 8).ok())
            .flatten()
            .ok_or_else(|| {
                Refusal::new(Code::BadInput, "the mode is three octal digits, such as 755").name("mode")
            })
    }

    /// Takes the replacements of an edit, in either of their two forms.
    ///
    /// # Errors
    /// `bad_input`.
    pub(super) fn edits(&mut self) -> Result<Vec<Edit>, Refusal> {
        let (old, new) = (self.text(OLD.name), self.text(NEW.name));
        let all = self.flag(REPLACE_ALL.name);
        match (old, new, self.take("edits")) {
            (Some(old), Some(new), None) => Ok(vec![one_edit(old, new, all)]),
            (None, None, Some(Value::Array(list))) if all == Flag::Unset => list
                .into_iter()
                .enumerate()
                .map(|(n, item)| listed_edit(n, item))
                .collect(),
            (None, None, Some(_)) => Err(Refusal::new(
                Code::BadInput,
                "each of the edits says whether it replaces all",
            )
            .reason("given_twice")
            .names([REPLACE_ALL.name, "edits"])),
            (None, None, None) => Err(missing(OLD.name)),
            (Some(_), None, None) => Err(missing(NEW.name)),
            (None, Some(_), None) => Err(missing(OLD.name)),
            (_, _, Some(_)) => Err(Refusal::new(Code::BadInput, "one argument comes in two forms")
                .reason("given_twice")
                .names([OLD.name, "edits"])),
        }
    }
}

/// Says whether a flag was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// It was.
    Set,
    /// It was not, or was left out.
    Unset,
}

fn one_edit(old: String, new: String, all: Flag) -> Edit {
    Edit {
        old: old.into_bytes(),
        new: new.into_bytes(),
        occurrences: match all {
            Flag::Set => Occurrences::All,
            Flag::Unset => Occurrences::One,
        },
    }
}

fn listed_edit(n: usize, item: Value) -> Result<Edit, Refusal> {
    let at = |name: &str| format!("edits[{n}].{name}");
    let Value::Object(mut item) = item else {
        return Err(wrong_type("edits", "a list of objects"));
    };
    let mut values = Values {
        given: fold_fields(&[OLD, NEW, REPLACE_ALL], &mut item)?,
        in_tree: &|_| None,
    };
    if !item.is_empty() {
        return Err(unknown("an edit takes no such argument".to_owned(), &item));
    }
    let all = values.flag(REPLACE_ALL.name);
    let old = values.text(OLD.name).ok_or_else(|| missing(&at(OLD.name)))?;
    let new = values.text(NEW.name).ok_or_else(|| missing(&at(NEW.name)))?;
    Ok(one_edit(old, new, all))
}

fn fold_fields(
    fields: &'static [Field],
    arguments: &mut Map<String, Value>,
) -> Result<Vec<(&'static str, Value)>, Refusal> {
    let mut values = Vec::new();
    for field in fields {
        let names = std::iter::once(&field.name).chain(field.aliases);
        let given: Vec<(&str, Value)> = names
            .filter_map(|name| Some((*name, arguments.remove(*name)?)))
            .collect();
        if given.len() > 1 {
            return Err(Refusal::new(Code::BadInput, "one argument comes under two names")
                .reason("given_twice")
                .names(given.iter().map(|(name, _)| *name)));
        }
        if let Some((name, value)) = given.into_iter().next() {
            if !fits(field.form, &value) {
                return Err(wrong_type(name, takes(field.form)));
            }
            within(field.form, &value).map_err(|why| Refusal::new(Code::BadInput, why).name(name))?;
            values.push((field.name, value));
        }
    }
    Ok(values)
}

fn fits(form: Form, value: &Value) -> bool {
    let texts = || {
        value
            .as_array()
            .is_some_and(|list| list.iter().all(Value::is_string))
    };
    match form.of_type() {
        Type::Text => value.is_string(),
        Type::Texts => texts(),
        Type::TextOrTexts => value.is_string() || texts(),
        Type::Flag => value.is_boolean(),
        Type::Whole => whole(value).is_some(),
        Type::Pair | Type::Objects => value.is_array(),
        Type::Named => value
            .as_object()
            .is_some_and(|each| each.values().all(Value::is_string)),
    }
}

/// Gives a number that is whole, however it is spelt.
fn whole(value: &Value) -> Option<i128> {
    if let Some(n) = value.as_i64() {
        return Some(n.into());
    }
    if let Some(n) = value.as_u64() {
        return Some(n.into());
    }
    let n = value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15)?;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole, and small enough")]
    Some(n as i128)
}

/// Says why a value is not one of those that its form allows.
fn within(form: Form, value: &Value) -> Result<(), String> {
    const NUL: &str = "a command, its arguments and its variables hold no NUL";
    let has_nul = |text: &Value| text.as_str().is_some_and(|text| text.contains('\0'));
    match form {
        Form::Word if has_nul(value) => Err(NUL.to_owned()),
        Form::Texts => match value.as_array().map(Vec::as_slice) {
            None | Some([]) => Err("it holds at least one text".to_owned()),
            Some(list) if list.iter().any(has_nul) => Err(NUL.to_owned()),
            Some(_) => Ok(()),
        },
        Form::Edits if value.as_array().is_none_or(Vec::is_empty) => {
            Err("it holds at least one edit".to_owned())
        }
        Form::Lines => match value
            .as_array()
            .map(|pair| pair.iter().map(whole).collect::<Vec<_>>())
        {
            Some(pair) if pair.iter().flatten().all(|line| *line <= LARGEST_INTEGER.into()) => Ok(()),
            _ => Err(format!("a line is a whole number up to {LARGEST_INTEGER}")),
        },
        Form::Variables => {
            let mut each = value.as_object().into_iter().flatten();
            if each.any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || has_nul(value)) {
                return Err("a variable has a name without = and NUL, and a value without NUL".to_owned());
            }
            Ok(())
        }
        Form::Count { least, most } => match whole(value) {
            Some(n) if n >= i128::from(least) && n <= i128::from(most) => Ok(()),
            _ => Err(format!("it is a whole number from {least} to {most}")),
        },
        Form::Choice(words) if !words.contains(&value.as_str().unwrap_or_default()) => {
            Err(format!("it is one of {}", words.join(", ")))
        }
        _ => Ok(()),
    }
}

/// Says of what type a value of a form is.
fn takes(form: Form) -> &'static str {
    match form.of_type() {
        Type::Text if form == Form::Mode => "a text, such as \"755\"",
        Type::Text => "a text",
        Type::Texts => "a list of texts",
        Type::TextOrTexts => "a text or a list of texts",
        Type::Flag => "true or false",
        Type::Whole => "a whole number",
        Type::Pair => "a list of two whole numbers",
        Type::Objects => "a list of objects",
        Type::Named => "an object of texts",
    }
}

fn wrong_type(name: &str, wanted: &str) -> Refusal {
    Refusal::new(
        Code::BadInput,
        format!("an argument is of another type: it is {wanted}"),
    )
    .reason("wrong_type")
    .name(name)
}

fn unknown(why: String, arguments: &Map<String, Value>) -> Refusal {
    let names = arguments.keys().take(20);
    Refusal::new(Code::BadInput, why)
        .reason("unknown_argument")
        .names(names.map(|name| name.chars().take(80).collect::<String>()))
}

fn digest(text: &str) -> Result<Expected, Refusal> {
    if text == "absent" {
        return Ok(Expected::Absent);
    }
    let why = "64 lower-case hexadecimal digits, or absent";
    Sha256::parse(text)
        .map(Expected::Sha256)
        .map_err(|_| Refusal::new(Code::BadInput, why).name("expected_sha256"))
}
