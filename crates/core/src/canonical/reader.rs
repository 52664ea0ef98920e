//! The strict reader: one pass, no recovery, every refusal with its place.
//!
//! It does *not* accept what a lenient reader would mend.

use super::{LARGEST_INTEGER, Limits};
use crate::code::{Code, Refusal};
use crate::path::shown;
use serde_json::{Map, Number, Value};

pub(super) fn read(bytes: &[u8], limits: Limits) -> Result<Value, Refusal> {
    if bytes.len() > limits.bytes {
        let why = format!("the JSON text has more than {} bytes", limits.bytes);
        return Err(Refusal::new(Code::TooLarge, why));
    }
    let mut reader = Reader {
        bytes,
        at: 0,
        depth_left: limits.depth,
        path: Vec::new(),
    };
    reader.blank();
    let value = reader.value()?;
    reader.blank();
    if reader.at < bytes.len() {
        return Err(reader.refuse("trailing_bytes", "bytes follow the JSON text"));
    }
    Ok(value)
}

enum Step {
    Key(String),
    Index(usize),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth_left: usize,
    path: Vec<Step>,
}

impl Reader<'_> {
    fn refuse(&self, reason: &str, why: &str) -> Refusal {
        Refusal::new(Code::BadInput, format!("{why} (byte {})", self.at))
            .reason(reason)
            .name(self.pointer())
    }

    fn not_json(&self, why: &str) -> Refusal {
        self.refuse("not_json", why)
    }

    fn pointer(&self) -> String {
        if self.path.is_empty() {
            return "/".to_owned();
        }
        let mut text = String::new();
        for step in &self.path {
            text.push('/');
            match step {
                Step::Key(key) => {
                    let short: String = key.chars().take(80).collect();
                    text.push_str(&shown(short.replace('~', "~0").replace('/', "~1").as_bytes()));
                }
                Step::Index(index) => text.push_str(&index.to_string()),
            }
        }
        text
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8, why: &str) -> Result<(), Refusal> {
        if self.peek() != Some(byte) {
            return Err(self.not_json(why));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self) -> Result<Value, Refusal> {
        match self.peek() {
            None => Err(self.not_json("the JSON text ends too early")),
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => self.text().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number().map(Value::Number),
            Some(_) => {
                for (word, value) in [
                    ("null", Value::Null),
                    ("true", Value::Bool(true)),
                    ("false", Value::Bool(false)),
                ] {
                    if self.bytes[self.at..].starts_with(word.as_bytes()) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                Err(self.not_json("not a JSON value"))
            }
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, Refusal>) -> Result<Value, Refusal> {
        self.depth_left = self
            .depth_left
            .checked_sub(1)
            .ok_or_else(|| self.refuse("too_deep", "arrays and objects are nested too deeply"))?;
        self.at += 1;
        self.blank();
        let value = read(self)?;
        self.depth_left += 1;
        Ok(value)
    }

    fn array(&mut self) -> Result<Value, Refusal> {
        let mut items = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            self.path.push(Step::Index(items.len()));
            items.push(self.value()?);
            self.path.pop();
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                _ => return Err(self.not_json("an array goes on with , or ends with ]")),
            }
            self.blank();
        }
    }

    fn object(&mut self) -> Result<Value, Refusal> {
        let mut members = Map::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(members));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.not_json("a member of an object begins with its key"));
            }
            let key = self.text()?;
            self.path.push(Step::Key(key.clone()));
            if members.contains_key(&key) {
                return Err(self.refuse("duplicate_key", "a key stands twice in one object"));
            }
            self.blank();
            self.take(b':', "a colon follows a key")?;
            self.blank();
            let value = self.value()?;
            members.insert(key, value);
            self.path.pop();
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(members));
                }
                _ => return Err(self.not_json("an object goes on with , or ends with }")),
            }
            self.blank();
        }
    }

    fn text(&mut self) -> Result<String, Refusal> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let from = self.at;
            while self.peek().is_some_and(|b| b >= 0x20 && b != b'"' && b != b'\\') {
                self.at += 1;
            }
            match core::str::from_utf8(&self.bytes[from..self.at]) {
                Ok(part) => text.push_str(part),
                Err(error) => {
                    self.at = from + error.valid_up_to();
                    return Err(self.refuse("invalid_utf8", "a string is not UTF-8"));
                }
            }
            match self.peek() {
                None => return Err(self.not_json("a string does not end")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => text.push(self.escape()?),
                Some(_) => return Err(self.not_json("a control character stands bare in a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Refusal> {
        self.at += 1;
        let c = match self.peek() {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.not_json("no such escape")),
        };
        self.at += 1;
        Ok(c)
    }

    fn unicode(&mut self) -> Result<char, Refusal> {
        let lone = "a surrogate stands alone in a string";
        let first = self.unit()?;
        if let Some(c) = char::from_u32(u32::from(first)) {
            return Ok(c);
        }
        if first < 0xdc00 && self.bytes[self.at..].starts_with(b"\\u") {
            self.at += 2;
            let second = self.unit()?;
            if let Some(Ok(c)) = char::decode_utf16([first, second]).next() {
                return Ok(c);
            }
        }
        Err(self.refuse("lone_surrogate", lone))
    }

    fn unit(&mut self) -> Result<u16, Refusal> {
        let digits = self.bytes.get(self.at..self.at + 4).unwrap_or_default();
        let mut unit = 0_u16;
        for digit in digits {
            match char::from(*digit)
                .to_digit(16)
                .and_then(|d| u16::try_from(d).ok())
            {
                Some(digit) => unit = unit << 4 | digit,
                None => return Err(self.not_json("\\u takes four hexadecimal digits")),
            }
        }
        if digits.len() < 4 {
            return Err(self.not_json("\\u takes four hexadecimal digits"));
        }
        self.at += 4;
        Ok(unit)
    }

    fn digits(&mut self) -> Result<(), Refusal> {
        let from = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == from {
            return Err(self.not_json("a number lacks a digit"));
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Number, Refusal> {
        let from = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return Err(self.not_json("a number does not begin with 0"));
        }
        let mut exponent = false;
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            exponent = true;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let literal = core::str::from_utf8(&self.bytes[from..self.at]).unwrap_or_default();
        number_of(literal, exponent).ok_or_else(|| {
            self.refuse(
                "number_range",
                "a number that not every reader reads alike: a whole one has at most 2^53 - 1 either way",
            )
        })
    }
}

/// Gives the one value of a literal; `None` where readers would differ.
fn number_of(literal: &str, exponent: bool) -> Option<Number> {
    let double: f64 = literal.parse().ok().filter(|d: &f64| d.is_finite())?;
    let magnitude = double.abs();
    #[expect(clippy::cast_precision_loss, reason = "2^53 - 1 is a double")]
    let safe = magnitude <= LARGEST_INTEGER as f64;
    if safe && double.fract() == 0.0 {
        #[expect(clippy::cast_possible_truncation, reason = "whole, and within 2^53")]
        return Some(Number::from(double as i64));
    }
    // Up to 1e21 the canonical spelling has no exponent, so it would read back as an integer out of range.
    if !safe && (!exponent || magnitude < 1e21) {
        return None;
    }
    Number::from_f64(double)
}
