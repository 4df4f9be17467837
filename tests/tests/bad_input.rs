//! Malformed requests and manifests, kept as files, each with the answer it must get.
//!
//! `NAME.http` is sent as it stands; a manifest `NAME.json` or `NAME.yaml` is the
//! body of the request that its answer file names. `NAME.answer` has the lines
//!
//! ```text
//! request: POST /path content/type     (manifests only)
//! status:  422 Invalid
//! message: what the real server says
//! embedded: 400 BadRequest, why        (where the embedded server answers in its own way)
//! compare: all | status                (status where the words are those of Go's libraries)
//! ```
//!
//! `MIDFLIGHT_RECORD=1` writes status and message as the real server gives them.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its files has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use midflight_tests::endpoint::Endpoint;
use midflight_tests::server::Embedded;
use midflight_tests::{kinds, place};

/// One file with its answer.
struct Case {
    name: String,
    bytes: Vec<u8>,
    /// `None` when the file is the whole request.
    request: Option<String>,
    answer: BTreeMap<String, String>,
    path: PathBuf,
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bad-input");
    let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    files.sort();
    let inputs = files.into_iter().filter(|path| path.extension().is_some_and(|kind| kind != "answer"));
    inputs
        .map(|path| {
            let beside = path.with_extension("answer");
            let text =
                fs::read_to_string(&beside).unwrap_or_else(|_| panic!("{} has no answer", path.display()));
            let answer = text
                .lines()
                .filter_map(|line| line.split_once(": "))
                .map(|(key, value)| (key.to_owned(), value.trim().to_owned()));
            let answer = answer.collect::<BTreeMap<_, _>>();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Case {
                name,
                bytes: fs::read(&path).unwrap(),
                request: answer.get("request").cloned(),
                answer,
                path: beside,
            }
        })
        .collect()
}

/// The bytes to send: the file, or the request around the manifest.
fn bytes(case: &Case, token: &str) -> Vec<u8> {
    let content = fill(&case.bytes);
    let Some(request) = &case.request else {
        let text = String::from_utf8_lossy(&content).replace("{token}", token);
        let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
        let head = head.replace("{length}", &body.len().to_string()).replace('\n', "\r\n");
        return [head.trim_end().as_bytes(), b"\r\n\r\n", body.as_bytes()].concat();
    };
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or("POST"), words.next().unwrap_or("/"));
    let media_type = words.next().unwrap_or("application/json");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nAccept: application/json\r\n\
         Connection: close\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n\r\n",
        content.len()
    );
    [head.as_bytes(), &content].concat()
}

/// `{fill:N}` becomes N letters, `{deep:N}` N lists in each other: what is too big for a file.
fn fill(bytes: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(bytes) else { return bytes.to_vec() };
    let mut out = text.to_owned();
    for (word, make) in
        [("fill", (|n| "x".repeat(n)) as fn(usize) -> String), ("deep", |n| "[".repeat(n) + &"]".repeat(n))]
    {
        while let Some(start) = out.find(&format!("{{{word}:")) {
            let end = start + out[start..].find('}').expect("a placeholder has an end");
            let number = out[start + word.len() + 2..end].parse().expect("a placeholder has a number");
            out.replace_range(start..=end, &make(number));
        }
    }
    out.into_bytes()
}

/// What the server said, in the words of an answer file.
async fn ask(server: &Endpoint, case: &Case) -> anyhow::Result<(String, String)> {
    let reply = server.wire()?.exchange(&bytes(case, &server.token())).await?;
    let status = reply.json();
    let reason = status["reason"].as_str().unwrap_or("-");
    let message = status["message"].as_str().map_or_else(|| reply.body.clone(), str::to_owned);
    let message = message.replace('\n', " ").chars().take(600).collect::<String>();
    Ok((format!("{} {reason}", reply.status), message.trim().to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_server_answers_as_the_files_say() {
    let Some(kubeconfig) = place::judge() else {
        return place::skip(
            "bad input to the real server: set MIDFLIGHT_JUDGE_KUBECONFIG (dev/kubernetes test does)",
        );
    };
    let server = Endpoint::from_kubeconfig(&kubeconfig).await.unwrap();
    kinds::install(&server).await.unwrap();
    let recording = std::env::var_os("MIDFLIGHT_RECORD").is_some();
    let mut faults = Vec::new();
    for case in &cases() {
        let said = ask(&server, case).await;
        let (status, message) = said.unwrap_or_else(|error| ("none -".to_owned(), error.to_string()));
        if recording {
            record(case, &status, &message);
        } else {
            let words = (case.answer["compare"] == "all").then_some(case.answer["message"].as_str());
            faults.extend(differences(case, &case.answer["status"], words, (&status, &message)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_answers_as_the_files_say() {
    let server = Embedded::start().await.unwrap();
    kinds::install(&server.admin).await.unwrap();
    let mut faults = Vec::new();
    for case in &cases() {
        let said = ask(&server.admin, case).await;
        let (status, message) = said.unwrap_or_else(|error| ("none -".to_owned(), error.to_string()));
        match case.answer.get("embedded").and_then(|own| own.split_once(", ")) {
            Some((own, _)) => faults.extend(differences(case, own, None, (&status, &message))),
            None => {
                let words = (case.answer["compare"] == "all").then_some(case.answer["message"].as_str());
                faults.extend(differences(case, &case.answer["status"], words, (&status, &message)));
            }
        }
    }
    server.stop().await;
    assert!(faults.is_empty(), "{} of {} differ:\n{}", faults.len(), cases().len(), faults.join("\n"));
}

#[test]
fn there_are_at_least_sixty() {
    assert!(cases().len() >= 60, "{}", cases().len());
}

fn differences(case: &Case, status: &str, message: Option<&str>, (said, words): (&str, &str)) -> Vec<String> {
    let mut found = Vec::new();
    if said != status {
        found.push(format!("{}: wanted {status}, got {said}: {words}", case.name));
    } else if let Some(message) = message.filter(|message| *message != words) {
        found.push(format!(
            "{}: wanted {message}\n{:width$}     got {words}",
            case.name,
            "",
            width = case.name.len()
        ));
    }
    found
}

fn record(case: &Case, status: &str, message: &str) {
    let mut lines = Vec::new();
    if let Some(request) = &case.request {
        lines.push(format!("request: {request}"));
    }
    lines.push(format!("status: {status}"));
    lines.push(format!("message: {message}"));
    for kept in ["embedded", "compare"] {
        if let Some(value) = case.answer.get(kept) {
            lines.push(format!("{kept}: {value}"));
        }
    }
    fs::write(&case.path, lines.join("\n") + "\n").unwrap();
}
