//! Reads the text form of label selectors.
//!
//! Invariant: accepts and refuses what the real server does, with its words.

use super::{Requirement, Test};
use crate::{
    builtin::names::{label_key, label_value, quoted},
    error::{ApiError, Reason},
};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    /// One of `!`, `(`, `)`, `,`, `=`, `==`, `!=`, `>`, `<`.
    Symbol(&'static str),
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Word(text) => text,
            Token::Symbol(text) => text,
            Token::End => "",
        }
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self, Token::Symbol(own) if *own == symbol)
    }

    fn begins_requirement(&self) -> bool {
        matches!(self, Token::Word(_)) || self.is("!")
    }
}

/// Every special character begins one of these; longer ones come first.
const SYMBOLS: [&str; 9] = ["!=", "==", "!", "(", ")", ",", "=", ">", "<"];

pub(super) fn selector(text: &str) -> Result<Vec<Requirement>, String> {
    let mut parser = Parser { tokens: tokens(text), position: 0 };
    let mut requirements = Vec::new();
    loop {
        let token = parser.peek();
        if *token == Token::End {
            return Ok(requirements);
        }
        if !token.begins_requirement() {
            return Err(format!("found '{}', expected: !, identifier, or 'end of string'", token.text()));
        }
        let requirement =
            parser.requirement().map_err(|message| format!("unable to parse requirement: {message}"))?;
        requirements.push(requirement);
        let after = parser.next();
        if after == Token::End {
            return Ok(requirements);
        }
        if !after.is(",") {
            return Err(format!("found '{}', expected: ',' or 'end of string'", after.text()));
        }
        if !parser.peek().begins_requirement() {
            return Err(format!("found '{}', expected: identifier after ','", parser.peek().text()));
        }
    }
}

/// A requirement from its parts, checked. `exists` and `!` take no values.
pub(super) fn requirement(key: &str, operator: &str, values: Vec<String>) -> Result<Requirement, ApiError> {
    checked(key, operator, values).map_err(|message| ApiError::new(Reason::BadRequest, message))
}

fn checked(key: &str, operator: &str, mut values: Vec<String>) -> Result<Requirement, String> {
    let mut wrong = Vec::new();
    let problems = label_key(key);
    if !problems.is_empty() {
        wrong.push(format!("key: Invalid value: {}: {}", quoted(key), problems.join("; ")));
    }
    let listed = || serde_json::to_string(&values).unwrap_or_default();
    match operator {
        "in" | "notin" if values.is_empty() => {
            wrong.push(format!(
                "values: Invalid value: {}: for 'in', 'notin' operators, values set can't be empty",
                listed()
            ));
        }
        "exists" | "!" if !values.is_empty() => {
            wrong.push(format!(
                "values: Invalid value: {}: values set must be empty for exists and does not exist",
                listed()
            ));
        }
        ">" | "<" => {
            for (index, value) in values.iter().enumerate().filter(|(_, value)| value.parse::<i64>().is_err())
            {
                wrong.push(format!(
                    "values[{index}]: Invalid value: {}: for 'Gt', 'Lt' operators, the value must be an integer",
                    quoted(value)
                ));
            }
        }
        _ => {}
    }
    for (index, value) in values.iter().enumerate() {
        let problems = label_value(value);
        if !problems.is_empty() {
            wrong.push(format!(
                "values[{index}][{key}]: Invalid value: {}: {}",
                quoted(value),
                problems.join("; ")
            ));
        }
    }
    match wrong.len() {
        0 => {}
        1 => return Err(wrong.remove(0)),
        _ => return Err(format!("[{}]", wrong.join(", "))),
    }
    values.sort();
    values.dedup();
    let first = values.first().cloned().unwrap_or_default();
    let number = first.parse().unwrap_or_default();
    let test = match operator {
        "exists" => Test::Exists,
        "!" => Test::Missing,
        "in" => Test::In(values),
        "notin" => Test::NotIn(values),
        "!=" => Test::NotEquals(first),
        ">" => Test::GreaterThan(number),
        "<" => Test::LessThan(number),
        _ => Test::Equals(first),
    };
    Ok(Requirement { key: key.to_owned(), test })
}

struct Parser {
    tokens: Vec<Token>,
    position: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.position).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.position += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut token = self.next();
        let missing = token.is("!");
        if missing {
            token = self.next();
        }
        let Token::Word(key) = token else {
            return Err(format!("found '{}', expected: identifier", token.text()));
        };
        let problems = label_key(&key);
        if !problems.is_empty() {
            return Err(format!("<nil>: Invalid value: {}: {}", quoted(&key), problems.join("; ")));
        }
        if missing {
            return checked(&key, "!", Vec::new());
        }
        if *self.peek() == Token::End || self.peek().is(",") {
            return checked(&key, "exists", Vec::new());
        }
        let operator = self.next();
        let values = match operator.text() {
            "in" | "notin" => self.value_set()?,
            "=" | "==" | "!=" | ">" | "<" => vec![self.exact_value()?],
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        checked(&key, operator.text(), values)
    }

    fn value_set(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if !open.is("(") {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        let first = self.peek().text().to_owned();
        match self.peek() {
            Token::Word(_) | Token::Symbol(",") => {
                let values = self.value_list()?;
                if !self.next().is(")") {
                    return Err(format!("found '{first}', expected: ')'"));
                }
                Ok(values)
            }
            Token::Symbol(")") => {
                self.next();
                Ok(vec![String::new()])
            }
            _ => Err(format!("found '{first}', expected: ',', ')' or identifier")),
        }
    }

    /// A list of words, any of which may be empty, up to the closing parenthesis.
    fn value_list(&mut self) -> Result<Vec<String>, String> {
        let mut values = Vec::new();
        loop {
            match self.next() {
                Token::Word(value) => {
                    values.push(value);
                    match self.peek() {
                        Token::Symbol(",") => {}
                        Token::Symbol(")") => return Ok(values),
                        other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
                    }
                }
                Token::Symbol(",") => {
                    if values.is_empty() || self.peek().is(",") {
                        values.push(String::new());
                    }
                    if self.peek().is(")") {
                        values.push(String::new());
                        return Ok(values);
                    }
                }
                other => return Err(format!("found '{}', expected: ',', or identifier", other.text())),
            }
        }
    }

    fn exact_value(&mut self) -> Result<String, String> {
        if *self.peek() == Token::End || self.peek().is(",") {
            return Ok(String::new());
        }
        match self.next() {
            Token::Word(value) => Ok(value),
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let special = |c: char| "!(),=<>".contains(c);
    let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(blank);
    while !rest.is_empty() {
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
        } else {
            let word = rest.find(|c| special(c) || blank(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..word].to_owned()));
            rest = &rest[word..];
        }
        rest = rest.trim_start_matches(blank);
    }
    tokens
}
