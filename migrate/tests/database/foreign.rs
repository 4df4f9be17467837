//! A client that is not ours, to write behind our back and to look at keys as others see them.

use std::io::{Read, Write};
use std::net::TcpStream;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::world::{Kind, World};

/// Sets a key as a service of the cloud would.
pub(crate) fn set(world: &World, key: &str, value: &str) {
    match world.kind {
        Kind::Etcd => {
            etcd(world.port(), "put", &json!({ "key": encode(key), "value": encode(value) }));
        }
        Kind::Redis => {
            redis(world.port(), &["SET", key, value]);
        }
        Kind::Embedded => panic!("a file has no foreign clients"),
    }
}

pub(crate) fn get(world: &World, key: &str) -> Option<String> {
    match world.kind {
        Kind::Etcd => {
            let answer = etcd(world.port(), "range", &json!({ "key": encode(key) }));
            let value = answer["kvs"][0]["value"].as_str()?;
            Some(String::from_utf8(BASE64_STANDARD.decode(value).unwrap()).unwrap())
        }
        Kind::Redis => redis(world.port(), &["GET", key]),
        Kind::Embedded => panic!("a file has no foreign clients"),
    }
}

pub(crate) fn delete(world: &World, key: &str) {
    match world.kind {
        Kind::Etcd => {
            etcd(world.port(), "deleterange", &json!({ "key": encode(key) }));
        }
        Kind::Redis => {
            redis(world.port(), &["DEL", key]);
        }
        Kind::Embedded => panic!("a file has no foreign clients"),
    }
}

fn encode(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// Through etcd's JSON gateway.
pub(crate) fn etcd(port: u16, call: &str, body: &Value) -> Value {
    let answer = post(port, &format!("/v3/kv/{call}"), body);
    assert!(answer.get("error").is_none(), "{answer}");
    answer
}

pub(crate) fn post(port: u16, path: &str, body: &Value) -> Value {
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
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// One command, and the text it gives.
pub(crate) fn redis(port: u16, words: &[&str]) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    request += "*1\r\n$4\r\nQUIT\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(!answer.starts_with('-'), "{words:?}: {answer}");
    if answer.starts_with("$-1") {
        return None;
    }
    let body = if answer.starts_with('$') { answer.split_once("\r\n").unwrap().1 } else { &answer[1..] };
    body.split_once("\r\n").map(|(text, _)| text.to_owned())
}
