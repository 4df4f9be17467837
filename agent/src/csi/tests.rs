//! The calls of kubelet on real mounts.

mod idle;
mod insists;
mod race;
mod recovery;
mod refused;
mod trouble;
mod world;

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use kube::Client;
use midflight_api::fluid::DRIVER;
use midflight_apiserver::{ApiServer, auth::Identity};
use tonic::Code;
use tower::ServiceExt as _;

use self::world::{NODE, World, plugin};
use super::{
    mounts::{Mounts, Place},
    proto::{
        ControllerGetCapabilitiesRequest, GetPluginInfoRequest, NodeGetCapabilitiesRequest,
        NodeGetInfoRequest, NodeStageVolumeRequest, ProbeRequest, controller_client::ControllerClient,
        identity_client::IdentityClient, node_client::NodeClient, volume_capability::access_mode::Mode,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_daemon_goes_when_its_last_workload_does() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    assert!(world.labelled().await);
    assert_eq!(world.publish("one").await, Err(Code::Unavailable), "no daemon yet");
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    world.publish("two").await.unwrap();
    fs::write(world.path("one/file"), "seen by all").unwrap();
    assert_eq!(fs::read(world.path("two/file")).unwrap(), b"seen by all");

    world.want("fuse:2").await;
    world.unpublish("one").await.unwrap();
    assert_eq!(world.unstage().await, Err(Code::FailedPrecondition), "another workload is there");
    assert!(world.labelled().await);
    assert_eq!(fs::read(world.path("two/file")).unwrap(), b"seen by all");
    world.unpublish("two").await.unwrap();
    world.unstage().await.unwrap();
    assert!(!world.labelled().await);
    assert!(!world.path("one").exists() && !world.path("two").exists());

    world.daemon_goes();
    world.stage().await.unwrap();
    assert!(world.labelled().await);
    world.daemon_comes("fuse:2");
    world.publish("one").await.unwrap();
    world.unpublish("one").await.unwrap();
    world.unstage().await.unwrap();
    assert!(world.labelled().await, "an up-to-date daemon stays for the next one");
    assert_eq!(world.mounts(), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_given_a_daemon_that_was_sent_away() {
    let Some(mut world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    world.unpublish("one").await.unwrap();
    world.want("fuse:2").await;
    world.unstage().await.unwrap();
    // The next workload comes before the old daemon has gone; the label must not come back.
    for _ in 0..3 {
        assert_eq!(world.stage().await, Err(Code::Unavailable));
        assert!(!world.labelled().await);
        world.restart();
    }
    world.daemon_goes();
    world.stage().await.unwrap();
    assert!(world.labelled().await);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_idle_before_the_change_is_upgraded_too() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.unstage().await.unwrap();
    assert!(world.labelled().await);
    world.want("fuse:2").await;
    assert_eq!(world.stage().await, Err(Code::Unavailable), "the old daemon goes first");
    assert!(!world.labelled().await);
    world.daemon_goes();
    world.stage().await.unwrap();
    assert!(world.labelled().await);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_one_dataset_share_its_daemon() {
    let Some(world) = World::new().await else { return };
    let room = [("fluid_sub_path", "room")];
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    fs::create_dir(world.mount().join("room")).unwrap();
    world.stage_as("other", &room).await.unwrap();
    world.publish("one").await.unwrap();
    world.publish_as("other", "two", Mode::MultiNodeMultiWriter).await.unwrap();
    fs::write(world.path("two/file"), "in the room").unwrap();
    assert_eq!(fs::read(world.path("one/room/file")).unwrap(), b"in the room");

    world.want("fuse:2").await;
    world.unpublish_as("other", "two").await.unwrap();
    world.unstage_as("other", "staging").await.unwrap();
    assert!(world.labelled().await, "another volume has a workload");
    world.stage_as("other", &room).await.unwrap();
    world.unpublish("one").await.unwrap();
    world.unstage().await.unwrap();
    assert!(world.labelled().await, "another volume is staged");
    world.unstage_as("other", "staging").await.unwrap();
    assert!(!world.labelled().await, "that was the last one");
    // The note of the daemon counts for every volume of the dataset.
    assert_eq!(world.stage_as("third", &room).await, Err(Code::Unavailable));
    assert!(!world.labelled().await);
    world.daemon_goes();
    world.stage_as("third", &room).await.unwrap();
    assert!(world.labelled().await);
    world.end().await;
}

/// A daemon may die as it is sent away, and its pod start it again, before anyone has seen the label go.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_daemon_that_comes_back_is_sent_away_again() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.want("fuse:2").await;
    world.unstage().await.unwrap();
    world.daemon_goes();
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    assert_eq!(world.publish("one").await, Err(Code::Unavailable));
    assert!(!world.labelled().await, "sent away once more");
    world.daemon_goes();
    world.stage().await.unwrap();
    world.daemon_comes("fuse:2");
    world.publish("one").await.unwrap();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelet_reaches_all_services_on_one_socket() {
    let Some(world) = World::new().await else { return };
    let socket = world.path("csi.sock");
    fs::write(&socket, "left by an earlier process").unwrap();
    let config = world::config(world.folder.path());
    let (tell, told) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(super::serve(config, world.client.clone(), move || tell.send(()).unwrap()));
    told.await.unwrap();
    let place = socket.clone();
    let connect = tower::service_fn(move |_: http::Uri| {
        let socket = place.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connect).await.unwrap();
    let mut identity = IdentityClient::new(channel.clone());
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, DRIVER);
    identity.probe(ProbeRequest {}).await.unwrap();
    let node_channel = channel.clone();
    let mut node = NodeClient::new(channel);
    assert_eq!(node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner().node_id, NODE);
    let can = node.node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
    assert_eq!(can.capabilities.len(), 5);
    let mut controller = ControllerClient::new(node_channel);
    let can = controller
        .controller_get_capabilities(ControllerGetCapabilitiesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(can.capabilities.len(), 4);
    let refused = node.node_stage_volume(NodeStageVolumeRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);

    // Somebody tidies up: whoever has a connection keeps it, and whoever comes later finds the socket again.
    fs::remove_file(&socket).unwrap();
    identity.probe(ProbeRequest {}).await.unwrap();
    let begun = std::time::Instant::now();
    while tokio::net::UnixStream::connect(&socket).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(150), "the socket does not come back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    serving.abort();
    world.end().await;
}

/// Kubelet's patience: a call that may succeed later is made again.
async fn until_done(mut call: impl AsyncFnMut() -> Result<(), Code>) {
    let started = std::time::Instant::now();
    loop {
        match call().await {
            Ok(()) => return,
            Err(Code::Unavailable | Code::Aborted | Code::FailedPrecondition) => {}
            Err(code) => panic!("{code:?}"),
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the call never succeeds");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Does what DaemonSet controller and kubelet would: brings a daemon to a labelled node, ends that of
/// another, each a little late.
async fn follow_the_label(world: Arc<World>) {
    for turn in 0u64.. {
        let there = matches!(Mounts::Machine.look(&world.mount()), Ok(Place::Served { .. }));
        match (world.labelled().await, there) {
            (true, false) => world.daemon_comes(&world.wanted().await),
            (false, true) => {
                tokio::time::sleep(Duration::from_millis(turn * 7 % 20)).await;
                world.daemon_goes();
            }
            (true, true) | (false, false) => {}
        }
        tokio::time::sleep(Duration::from_millis(turn % 3)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_upgrade_is_missed_and_no_workload_loses_its_mount_in_a_race() {
    let Some(world) = World::new().await else { return };
    let cycles =
        std::env::var("MIDFLIGHT_MOUNT_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let world = Arc::new(world);
    let follower = tokio::spawn(follow_the_label(Arc::clone(&world)));
    for cycle in 0..cycles {
        let image = format!("fuse:{cycle}");
        world.want(&image).await;
        // Two at once: kubelet may have given up waiting for the first.
        tokio::join!(until_done(async || world.stage().await), until_done(async || world.stage().await));
        tokio::join!(
            until_done(async || world.publish("one").await),
            until_done(async || world.publish("two").await)
        );
        let read = |target: &str| fs::read_to_string(world.path(target).join("served-by")).unwrap();
        assert_eq!((read("one"), read("two")), (image.clone(), image.clone()), "cycle {cycle}");
        // The next image comes while this one is used; nobody is disturbed.
        world.want(&format!("fuse:{cycle}-next")).await;
        until_done(async || world.unpublish("one").await).await;
        assert_eq!(world.unstage().await, Err(Code::FailedPrecondition));
        assert_eq!(read("two"), image, "cycle {cycle}");
        until_done(async || world.unpublish("two").await).await;
        until_done(async || world.unstage().await).await;
        assert!(!world.labelled().await && world.mounts() <= 1, "cycle {cycle}");
        assert!(!world.path("one").exists() && !world.path("two").exists(), "cycle {cycle}");
    }
    follower.abort();
    // Its end is awaited, so that it touches no mount any more.
    let _ = follower.await;
    assert!(world.mounts() <= 1, "mounts pile up");
    assert_eq!(fs::read_dir(world.path("state/volumes")).unwrap().count(), 0);
    world.server.shutdown().await;
}

/// At which write a plugin loses its API, and whether the write is done all the same.
#[derive(Debug, Clone, Copy)]
struct Cut {
    write: u32,
    done: bool,
}

/// What was asked of an API, as `METHOD /path?query`.
type Asked = Arc<Mutex<Vec<String>>>;

/// A client that notes what it asks, and fails at the cut.
fn noted(server: &ApiServer, cut: Option<Cut>) -> (Client, Asked) {
    let (inner, asked) = (server.service(Identity::admin("midflight")), Asked::default());
    let (writes, notes) = (Arc::new(AtomicU32::new(0)), Arc::clone(&asked));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (inner, writes) = (inner.clone(), Arc::clone(&writes));
        notes.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
        async move {
            let is_write = request.method() != http::Method::GET;
            let number = if is_write { Some(writes.fetch_add(1, Ordering::SeqCst)) } else { None };
            let cut = cut.filter(|cut| number == Some(cut.write));
            if cut.is_some_and(|cut| !cut.done) {
                return Err(std::io::Error::other("not sent"));
            }
            let Ok(answer) = inner.oneshot(request).await;
            if cut.is_some() { Err(std::io::Error::other("answer lost")) } else { Ok(answer) }
        }
    });
    (Client::new(service, "default"), asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_costs_one_read_and_one_write_at_most() {
    let Some(mut world) = World::new().await else { return };
    let (client, asked) = noted(&world.server, None);
    world.plugin = plugin(world.folder.path(), &client);
    let methods = || -> Vec<String> {
        let asked = std::mem::take(&mut *asked.lock().unwrap());
        asked.into_iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    world.stage().await.unwrap();
    assert_eq!(methods(), ["GET", "PATCH"]);
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    world.unpublish("one").await.unwrap();
    assert!(methods().is_empty());
    world.unstage().await.unwrap();
    assert_eq!(methods(), ["GET"], "nothing changes, nothing is written");
    world.stage().await.unwrap();
    world.want("fuse:2").await;
    assert_eq!(methods(), ["GET", "PATCH"]);
    world.unstage().await.unwrap();
    assert_eq!(methods(), ["GET", "PATCH"]);
    world.end().await;
}

/// A call after whose failure the plugin is dead, and the next one is called again; it has a good connection.
async fn survived(
    world: &mut World,
    deaths: &mut usize,
    call: impl AsyncFn(&World) -> Result<(), Code>,
) -> Result<(), Code> {
    match call(world).await {
        Ok(()) => Ok(()),
        Err(_) => {
            *deaths += 1;
            world.restart();
            call(world).await
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_dies_at_any_write_is_continued_by_the_next() {
    for write in 0..3 {
        for done in [false, true] {
            let Some(mut world) = World::new().await else { return };
            let cut = Cut { write, done };
            world.plugin = plugin(world.folder.path(), &noted(&world.server, Some(cut)).0);
            let mut deaths = 0;
            let staged = survived(&mut world, &mut deaths, async |world| world.stage().await).await;
            assert_eq!((staged, world.labelled().await), (Ok(()), true), "{cut:?}");
            world.daemon_comes("fuse:1");
            world.publish("one").await.unwrap();
            world.want("fuse:2").await;
            world.unpublish("one").await.unwrap();
            let unstaged = survived(&mut world, &mut deaths, async |world| world.unstage().await).await;
            assert_eq!((unstaged, world.labelled().await), (Ok(()), false), "{cut:?}");
            world.daemon_goes();
            let staged = survived(&mut world, &mut deaths, async |world| world.stage().await).await;
            assert_eq!((staged, world.labelled().await, deaths), (Ok(()), true, 1), "{cut:?}");
            world.end().await;
        }
    }
}
