//! Registries that are slow, lack an image, serve another one, or fall silent.

use std::{fs, io::Read, os::unix::fs::PermissionsExt};

use kube::Config;
use midflight_plan::storage::engine_image::Range;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::Instant,
};

use super::*;
use crate::{
    chain,
    image::{
        Layout, Program, pack,
        registry::{Answer, answer},
    },
};

/// What a registry does when it is asked for a layer, or for a manifest by its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// It sends half a layer, and the rest when it is told to go on.
    Slow,
    /// It sends half a layer and then nothing.
    Silent,
    /// One byte of a layer is not what it was.
    SpoilsLayers,
    /// Its manifests are not those that were asked for.
    ForgesManifests,
}

/// What the program of the image says of itself.
fn engine() -> Ranges {
    let one = Range { oldest: 1, newest: 1 };
    Ranges { api: one, wire: Range { oldest: 1, newest: 2 }, disk: one }
}

/// A registry with four names for one image, and a node that pulls from it.
struct World {
    host: String,
    go_on: Arc<Notify>,
    puller: Arc<Puller>,
    cluster: Client,
    digest: Digest,
    folder: TempDir,
}

impl World {
    async fn with(mood: Mood) -> World {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::at(folder.path().join("registry"));
        let binary = folder.path().join("binary");
        fs::write(&binary, vec![7; 1 << 20]).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let names = ["one:v1", "two:v1", "three:v1", "four:v1"].map(|name| name.parse().unwrap());
        let digest = pack(&layout, &names, Program { binary: &binary, engine: Some(engine()) })
            .unwrap()
            .remove(0)
            .digest;

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let go_on = Arc::new(Notify::new());
        let told = Arc::clone(&go_on);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, layout.clone(), mood, Arc::clone(&told)));
            }
        });
        let store = Store::open(&folder.path().join("nodes/node-1").join(Store::FOLDER)).unwrap();
        let neighbours = Neighbours::below(folder.path().join("nodes"), folder.path().join("turns"));
        let mut puller = Puller::new(store, neighbours);
        if mood == Mood::Silent {
            puller.patience = Duration::from_secs(1);
        }
        let cluster = Client::try_from(Config::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
        World { host, go_on, puller: Arc::new(puller), cluster, digest, folder }
    }

    fn image(&self, name: &str) -> ImageName {
        format!("{}/{name}", self.host).parse().unwrap()
    }

    async fn pull(&self, name: &str) -> Result<Held, String> {
        let pulled = self.puller.pull(&self.image(name), false, &self.cluster).await;
        pulled.map_err(|error| chain(&error))
    }

    /// Nothing is kept of an image that was not pulled.
    fn is_empty(&self) -> bool {
        let images = self.folder.path().join("nodes/node-1").join(Store::FOLDER);
        self.puller.store.list().is_empty() && fs::read_dir(images).unwrap().count() == 0
    }
}

async fn eventually(mut holds: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(seen) = holds() {
        assert!(Instant::now() < deadline, "{seen}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Answers one request and hangs up.
async fn serve(mut stream: TcpStream, layout: Layout, mood: Mood, go_on: Arc<Notify>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let text = String::from_utf8(request).unwrap();
    let path = text.split(' ').nth(1).unwrap();
    let (status, mut body) = match answer(&layout, true, path) {
        Answer::Content { mut file, .. } => {
            let mut body = Vec::new();
            file.read_to_end(&mut body).unwrap();
            (200, body)
        }
        Answer::Json(value) => (200, value.to_string().into_bytes()),
        Answer::Refused(refusal) => (refusal.status(), refusal.to_json().to_string().into_bytes()),
    };
    let (is_layer, by_digest) = (body.len() > 1 << 20, path.contains("/manifests/sha256:"));
    match mood {
        Mood::ForgesManifests if by_digest => body.push(b' '),
        Mood::SpoilsLayers if is_layer => body[600] ^= 1,
        _ => {}
    }
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let (first, rest) = body.split_at(body.len() / 2);
    // Whoever pulls may have given up.
    let _ = stream.write_all(first).await;
    match mood {
        Mood::Slow if is_layer => go_on.notified().await,
        Mood::Silent if is_layer => std::future::pending().await,
        _ => {}
    }
    let _ = stream.write_all(rest).await;
}

#[tokio::test]
async fn a_slow_pull_tells_how_far_it_is_and_others_wait_for_their_turn() {
    let world = Arc::new(World::with(Mood::Slow).await);
    let names = ["one:v1", "two:v1", "three:v1", "four:v1"];
    let pulls = names.map(|name| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.pull(name).await })
    });
    let told = || names.map(|name| world.puller.progress(&world.image(name)));
    eventually(|| {
        let all = told();
        let is_half = |told: &Option<Progress>| matches!(told, Some(Progress::Arrives { bytes, of }) if *bytes == *of / 2);
        let count = |wanted: Progress| all.iter().filter(|told| **told == Some(wanted)).count();
        // Three at once, of which one pulls: they are one image.
        let found = (all.iter().filter(|told| is_half(told)).count(), count(Progress::Awaited), count(Progress::Queued));
        if found == (1, 2, 1) { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
    world.go_on.notify_one();
    for pull in pulls {
        assert_eq!(pull.await.unwrap().unwrap().digest, world.digest);
    }
    assert_eq!(told(), [None; 4], "what is not pulled any more has no progress");
    assert_eq!(world.puller.store.list().len(), 1);
}

#[tokio::test]
async fn what_a_registry_lacks_or_forges_is_refused_with_the_reason_and_nothing_is_kept() {
    let cases = [
        (Mood::SpoilsLayers, "one:v1", "a layer is not what was asked for: its digest is "),
        (Mood::ForgesManifests, "one@DIGEST", "the manifest is not what was asked for: its digest is "),
        (Mood::ForgesManifests, "absent:v1", "has no absent:v1"),
        (Mood::ForgesManifests, "one:v2", "has no one:v2"),
    ];
    for (mood, name, expected) in cases {
        let world = World::with(mood).await;
        let name = name.replace("DIGEST", &world.digest.to_string());
        let refused = world.pull(&name).await.unwrap_err();
        assert!(refused.contains(expected), "{mood:?}: {refused}");
        assert!(world.is_empty(), "{mood:?}");
    }
}

#[tokio::test]
async fn a_registry_that_falls_silent_or_is_not_there_is_given_up() {
    let world = World::with(Mood::Silent).await;
    let refused = world.pull("one:v1").await.unwrap_err();
    assert_eq!(refused, format!("the registry {} has sent nothing for 1 seconds", world.host));
    assert!(world.is_empty());

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let image: ImageName = format!("{nobody}/one:v1").parse().unwrap();
    let refused = world.puller.pull(&image, false, &world.cluster).await.unwrap_err();
    assert!(chain(&refused).contains(&format!("reach the registry {nobody}")), "{}", chain(&refused));
}
