//! A client that is not ours, to write behind our back and to look at keys as others see them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::server::{Program, Server};

/// Keys asked for at a time.
const PAGE: usize = 2000;

/// Sets a key as a service of the cloud would.
pub(crate) fn set(server: &Server, key: &str, value: &str) {
    match server.program {
        Program::Etcd => put_etcd(server.port, key, value),
        Program::Redis => {
            redis(server.port, &["SET", key, value]);
        }
    }
}

/// As [`set`], by the port of an etcd alone.
pub(crate) fn put_etcd(port: u16, key: &str, value: &str) {
    etcd(port, "put", &json!({ "key": encode(key), "value": encode(value) }));
}

/// Sets a key as a service does that guards what it writes: only while another key holds what it is thought to.
pub(crate) fn put_etcd_if(port: u16, (guard, holds): (&str, &str), key: &str, value: &str) -> bool {
    let answer = etcd(
        port,
        "txn",
        &json!({
            "compare": [{"key": encode(guard), "target": "VALUE", "result": "EQUAL", "value": encode(holds)}],
            "success": [{"requestPut": {"key": encode(key), "value": encode(value)}}],
        }),
    );
    answer["succeeded"] == Value::Bool(true)
}

pub(crate) fn get(server: &Server, key: &str) -> Option<String> {
    match server.program {
        Program::Etcd => {
            let answer = etcd(server.port, "range", &json!({ "key": encode(key) }));
            let value = answer["kvs"][0]["value"].as_str()?;
            Some(String::from_utf8(decode(value)).unwrap())
        }
        Program::Redis => redis(server.port, &["GET", key]),
    }
}

pub(crate) fn delete(server: &Server, key: &str) {
    match server.program {
        Program::Etcd => {
            etcd(server.port, "deleterange", &json!({ "key": encode(key) }));
        }
        Program::Redis => {
            redis(server.port, &["DEL", key]);
        }
    }
}

/// Every key of the server with its value. A field of a Redis hash or a member of a set is named
/// after its key and a zero byte.
pub(crate) fn all(server: &Server) -> BTreeMap<String, Vec<u8>> {
    match server.program {
        Program::Etcd => all_of_etcd(server.port),
        Program::Redis => all_of_redis(server.port),
    }
}

fn all_of_etcd(port: u16) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut from = "\0".to_owned();
    loop {
        let page = json!({ "key": encode(&from), "range_end": encode("\0"), "limit": PAGE });
        let mut answer = etcd(port, "range", &page);
        let Some(pairs) = answer["kvs"].as_array_mut() else { return all };
        for pair in pairs {
            let key = String::from_utf8(decode(pair["key"].as_str().unwrap())).unwrap();
            from = format!("{key}\0");
            all.insert(key, decode(pair["value"].as_str().unwrap_or_default()));
        }
        if answer["more"] != Value::Bool(true) {
            return all;
        }
    }
}

fn all_of_redis(port: u16) -> BTreeMap<String, Vec<u8>> {
    let mut line = Line::to(port);
    let keys = line.ask(&["KEYS", "*"]).list();
    let keys: Vec<String> = keys.into_iter().map(Reply::text).collect();
    let mut all = BTreeMap::new();
    for page in keys.chunks(PAGE) {
        let types: Vec<Vec<&str>> = page.iter().map(|key| vec!["TYPE", key]).collect();
        let types = line.ask_many(&types);
        let ask: Vec<Vec<&str>> = page
            .iter()
            .zip(types)
            .map(|(key, kind)| match kind.text().as_str() {
                "string" => vec!["GET", key],
                "hash" => vec!["HGETALL", key],
                "set" => vec!["SMEMBERS", key],
                other => panic!("{key} is a {other}"),
            })
            .collect();
        for (words, reply) in ask.iter().zip(line.ask_many(&ask)) {
            let key = words[1];
            match words[0] {
                "GET" => {
                    all.insert(key.to_owned(), reply.bytes());
                }
                "SMEMBERS" => {
                    all.extend(
                        reply.list().into_iter().map(|member| (format!("{key}\0{}", member.text()), vec![])),
                    );
                }
                _ => {
                    let mut parts = reply.list().into_iter();
                    while let (Some(field), Some(value)) = (parts.next(), parts.next()) {
                        all.insert(format!("{key}\0{}", field.text()), value.bytes());
                    }
                }
            }
        }
    }
    all
}

fn encode(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn decode(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).unwrap()
}

/// Through etcd's JSON gateway.
pub(crate) fn etcd(port: u16, call: &str, body: &Value) -> Value {
    let answer = post(port, &format!("/v3/kv/{call}"), body);
    assert!(answer.get("error").is_none(), "{answer}");
    answer
}

pub(crate) fn post(port: u16, path: &str, body: &Value) -> Value {
    try_post(port, path, body).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// As [`post`], where the server may refuse or be too slow.
pub(crate) fn try_post(port: u16, path: &str, body: &Value) -> Result<Value, String> {
    let body = body.to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(
        stream,
        "POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer but {answer:?}"));
    let answer: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    match answer.get("error") {
        Some(error) => Err(error.to_string()),
        None => Ok(answer),
    }
}

/// One command, and the text it gives.
pub(crate) fn redis(port: u16, words: &[&str]) -> Option<String> {
    match Line::to(port).ask(words) {
        Reply::Nothing => None,
        reply => Some(reply.text()),
    }
}

/// A connection to Redis.
struct Line(BufReader<TcpStream>);

enum Reply {
    Nothing,
    Bytes(Vec<u8>),
    List(Vec<Reply>),
}

impl Reply {
    fn bytes(self) -> Vec<u8> {
        match self {
            Reply::Bytes(bytes) => bytes,
            Reply::Nothing | Reply::List(_) => panic!("not a text"),
        }
    }

    fn text(self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }

    fn list(self) -> Vec<Reply> {
        match self {
            Reply::List(list) => list,
            Reply::Nothing | Reply::Bytes(_) => panic!("not a list"),
        }
    }
}

impl Line {
    fn to(port: u16) -> Line {
        Line(BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap()))
    }

    fn ask(&mut self, words: &[&str]) -> Reply {
        self.ask_many(&[words.to_vec()]).remove(0)
    }

    fn ask_many(&mut self, commands: &[Vec<&str>]) -> Vec<Reply> {
        let mut request = String::new();
        for words in commands {
            request += &format!("*{}\r\n", words.len());
            for word in words {
                request += &format!("${}\r\n{word}\r\n", word.len());
            }
        }
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        commands.iter().map(|words| self.reply(words)).collect()
    }

    fn reply(&mut self, words: &[&str]) -> Reply {
        let mut head = String::new();
        self.0.read_line(&mut head).unwrap();
        let (kind, rest) =
            head.trim_end().split_at_checked(1).unwrap_or_else(|| panic!("{words:?}: no answer"));
        match kind {
            "+" | ":" => Reply::Bytes(rest.as_bytes().to_vec()),
            "$" | "*" if rest == "-1" => Reply::Nothing,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Reply::Bytes(bytes)
            }
            "*" => Reply::List((0..rest.parse::<usize>().unwrap()).map(|_| self.reply(words)).collect()),
            _ => panic!("{words:?}: {head}"),
        }
    }
}
