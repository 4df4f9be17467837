//! Reads the text of a JSON path.
//!
//! Invariant: consumes the whole text or says what it could not read.

use serde_json::Value;

use super::{Comparison, Operand, Step, Test};

pub(super) fn path(text: &str) -> Result<Vec<Step>, String> {
    let text = text.trim();
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    let mut reader = Reader { rest: inner.trim() };
    let mut steps = Vec::new();
    while !reader.rest.is_empty() {
        reader.step(&mut steps)?;
    }
    Ok(steps)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn step(&mut self, steps: &mut Vec<Step>) -> Result<(), String> {
        if let Some(rest) = self.rest.strip_prefix("[?(") {
            self.rest = rest;
            steps.push(self.filter()?);
        } else if let Some(rest) = self.rest.strip_prefix("..") {
            if steps.last() == Some(&Step::Descend) {
                return Err("invalid multiple recursive descent".into());
            }
            steps.push(Step::Descend);
            self.rest = rest;
            if rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                self.field(steps)?;
            }
        } else if let Some(rest) = self.rest.strip_prefix('[') {
            let end = rest.find(']').ok_or("unterminated array")?;
            self.rest = &rest[end + 1..];
            steps.extend(bracket(&rest[..end])?);
        } else if let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            self.field(steps)?;
        } else if let Some(rest) = self.rest.strip_prefix([' ', '$', '@']) {
            self.rest = rest;
        } else {
            let found = self.rest.chars().next().unwrap_or_default();
            return Err(format!("unrecognized character in action: '{found}'"));
        }
        Ok(())
    }

    /// A field name up to a dot, bracket or blank; a backslash protects the next character.
    fn field(&mut self, steps: &mut Vec<Step>) -> Result<(), String> {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let end = loop {
            match chars.next() {
                None => break self.rest.len(),
                Some((_, '\\')) => name.extend(chars.next().map(|(_, next)| next)),
                Some((at, '.' | '[' | ']' | ' ' | '{' | '}' | '(' | ')')) => break at,
                Some((_, c)) => name.push(c),
            }
        };
        self.rest = &self.rest[end..];
        match name.as_str() {
            "" => {}
            "*" => steps.push(Step::Each),
            _ => steps.push(Step::Field(name)),
        }
        Ok(())
    }

    /// What follows `[?(`, up to its `)]`. Quotes protect parentheses.
    fn filter(&mut self) -> Result<Step, String> {
        let mut quote = None;
        let mut escaped = false;
        let end = self.rest.char_indices().find_map(|(at, c)| {
            match (quote, c) {
                _ if escaped => escaped = false,
                (_, '\\') => escaped = true,
                (None, '"' | '\'') => quote = Some(c),
                (Some(open), c) if open == c => quote = None,
                (None, ')') => return Some(at),
                _ => {}
            }
            None
        });
        let end = end.ok_or("unterminated filter")?;
        let text = &self.rest[..end];
        self.rest = self.rest[end + 1..].strip_prefix(']').ok_or("unclosed array expect ]")?;
        let Some(start) = text.find(['!', '<', '>', '=']).filter(|start| *start > 0) else {
            return Ok(Step::Filter { left: path(text)?, test: Test::Exists });
        };
        let (left, rest) = text.split_at(start);
        let operator_end = rest.find(|c| !"!<>=".contains(c)).unwrap_or(rest.len());
        let (operator, right) = rest.split_at(operator_end);
        let comparison = match operator {
            "==" => Comparison::Equal,
            "!=" => Comparison::NotEqual,
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            _ => return Err(format!("unrecognized filter operator {operator}")),
        };
        Ok(Step::Filter { left: path(left)?, test: Test::Compare(comparison, operand(right.trim())?) })
    }
}

fn operand(text: &str) -> Result<Operand, String> {
    let quoted = ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    if let Some(inner) = quoted {
        let mut value = String::new();
        let mut chars = inner.chars();
        while let Some(c) = chars.next() {
            value.extend(if c == '\\' { chars.next() } else { Some(c) });
        }
        return Ok(Operand::Literal(value.into()));
    }
    if let Ok(value @ (Value::Number(_) | Value::Bool(_))) = serde_json::from_str(text) {
        return Ok(Operand::Literal(value));
    }
    path(text).map(Operand::Path)
}

/// What stands between `[` and `]`.
fn bracket(text: &str) -> Result<Vec<Step>, String> {
    let text = text.trim();
    if text == "*" {
        return Ok(vec![Step::Each]);
    }
    if text.contains(',') {
        let paths: Result<Vec<_>, _> = text.split(',').map(bracket).collect();
        return Ok(vec![Step::Union(paths?)]);
    }
    if let Some(key) = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
        return path(&format!(".{key}"));
    }
    let invalid = || format!("invalid array index {text}");
    let mut bounds = Vec::new();
    for part in text.split(':') {
        let number = if part.is_empty() { None } else { Some(part.parse().map_err(|_| invalid())?) };
        bounds.push(number);
    }
    match bounds[..] {
        [Some(index)] => Ok(vec![Step::Index(index)]),
        [from, to] => Ok(vec![Step::Slice { from, to, by: None }]),
        [from, to, by] => Ok(vec![Step::Slice { from, to, by }]),
        _ => Err(invalid()),
    }
}
