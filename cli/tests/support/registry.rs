//! A registry that is not the cluster's own, and may be slow or wrong.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    thread,
};

use serde_json::Value;

use super::pods::Cluster;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// It sends half a layer, and the rest when its mood is another one.
    Slow,
    /// A byte of each layer is another one.
    Forges,
}

/// Serves images that were packed for a cluster, on an address of this machine.
pub(crate) struct Registry {
    pub(crate) host: String,
    mood: Arc<(Mutex<Mood>, Condvar)>,
}

impl Registry {
    pub(crate) fn of(cluster: &Cluster, mood: Mood) -> Registry {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let mood = Arc::new((Mutex::new(mood), Condvar::new()));
        let (folder, told) = (cluster.sandbox.dir().join("registry"), Arc::clone(&mood));
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (folder, told) = (folder.clone(), Arc::clone(&told));
                thread::spawn(move || serve(stream, &folder, &told));
            }
        });
        Registry { host, mood }
    }

    pub(crate) fn becomes(&self, mood: Mood) {
        *self.mood.0.lock().unwrap() = mood;
        self.mood.1.notify_all();
    }
}

/// Answers one request and hangs up.
fn serve(mut stream: TcpStream, folder: &Path, mood: &(Mutex<Mood>, Condvar)) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let request = lines.next()?.ok()?;
    lines.map_while(Result::ok).find(String::is_empty)?;
    let now = *mood.0.lock().unwrap();
    let content = find(folder, request.split(' ').nth(1)?).and_then(|path| fs::read(path).ok());
    let (status, mut body) = content.map_or((404, Vec::new()), |content| (200, content));
    let is_layer = body.len() > 1 << 20;
    if now == Mood::Forges && is_layer {
        body[600] ^= 1;
    }
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    let (first, rest) = body.split_at(body.len() / 2);
    stream.write_all(first).ok()?;
    if is_layer {
        drop(mood.1.wait_while(mood.0.lock().unwrap(), |mood| *mood == Mood::Slow).unwrap());
    }
    stream.write_all(rest).ok()
}

/// The file that a path of a registry means.
fn find(folder: &Path, path: &str) -> Option<PathBuf> {
    let blob = |digest: &str| Some(folder.join("blobs/sha256").join(digest.strip_prefix("sha256:")?));
    let parts: Vec<&str> = path.strip_prefix("/v2/")?.split('/').collect();
    match parts.as_slice() {
        [_, "blobs", digest] => blob(digest),
        [name, "manifests", tag] => {
            let index: Value = serde_json::from_slice(&fs::read(folder.join("index.json")).ok()?).ok()?;
            let named = format!("midflight.local/{name}:{tag}");
            let is_it = |entry: &&Value| entry["annotations"]["org.opencontainers.image.ref.name"] == named;
            blob(index["manifests"].as_array()?.iter().find(is_it)?["digest"].as_str()?)
        }
        _ => None,
    }
}
