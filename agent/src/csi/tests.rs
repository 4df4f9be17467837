//! The calls of kubelet on real mounts, with an API server in this process. A daemon is stood
//! for by a file system that comes and goes with the node's label, as a DaemonSet would have it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node as NodeObject, PersistentVolumeClaim};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use midflight_api::fluid::{IMAGE_VERSION_ANNOTATION, UPDATE_STRATEGY_ANNOTATION};
use midflight_apiserver::{ApiServer, Config, auth::Identity};
use midflight_handover::kernel::{self, Waiting};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;
use tempfile::TempDir;
use tonic::{Code, Request};
use tower::ServiceExt as _;

use super::{
    CsiConfig,
    mounts::{self, Place},
    node::NodeService,
    proto::{
        GetPluginInfoRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
        NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
        NodeUnstageVolumeRequest, ProbeRequest, VolumeCapability,
        identity_client::IdentityClient,
        node_client::NodeClient,
        node_server::Node,
        volume_capability::{AccessType, MountVolume},
    },
};

const NODE: &str = "node-1";
const VOLUME: &str = "default-data";
const LABEL: &str = "fluid.io/f-default-data";

/// Whether this machine cannot mount; says so, and fails where that may not be.
#[allow(clippy::print_stderr)]
fn skipped() -> bool {
    let why = match () {
        () if !rustix::process::geteuid().is_root() => "not root",
        () if !Path::new("/dev/fuse").exists() => "no /dev/fuse",
        () => return false,
    };
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "mounts cannot be tested: {why}");
    eprintln!("SKIPPED: {why}");
    true
}

struct World {
    folder: TempDir,
    client: Client,
    server: ApiServer,
    plugin: Arc<NodeService>,
}

impl World {
    async fn new() -> World {
        let folder = tempfile::Builder::new().prefix("mfcsi-").tempdir().unwrap();
        let server = ApiServer::open(Config::new(folder.path().join("api"))).await.unwrap();
        let client = Client::new(server.service(Identity::admin("midflight")), "default");
        let node = serde_json::from_value(json!({ "metadata": { "name": NODE } })).unwrap();
        Api::<NodeObject>::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
        let claim = json!({
            "metadata": { "name": "data", "annotations": { UPDATE_STRATEGY_ANNOTATION: "OnIdle" } },
            "spec": { "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } } },
        });
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(client.clone());
        claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
        let plugin = plugin(folder.path(), &client);
        let world = World { folder, client, server, plugin };
        world.want("fuse:1").await;
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn mount(&self) -> PathBuf {
        self.path("runtime/juicefs-fuse")
    }

    /// Another process in the plugin's place.
    fn restart(&mut self) {
        self.plugin = plugin(self.folder.path(), &self.client);
    }

    async fn want(&self, image: &str) {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(self.client.clone());
        let patch = json!({ "metadata": { "annotations": { IMAGE_VERSION_ANNOTATION: image } } });
        claims.patch("data", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn wanted(&self) -> String {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(self.client.clone());
        let annotations = claims.get("data").await.unwrap().metadata.annotations.unwrap();
        annotations[IMAGE_VERSION_ANNOTATION].clone()
    }

    async fn labelled(&self) -> bool {
        let node = Api::<NodeObject>::all(self.client.clone()).get(NODE).await.unwrap();
        node.metadata.labels.is_some_and(|labels| labels.get(LABEL).is_some_and(|value| value == "true"))
    }

    /// What a daemon's pod does when it starts.
    fn daemon_comes(&self, image: &str) {
        fs::create_dir_all(self.mount()).unwrap();
        let metadata = self.path("runtime/.meta/fuse");
        fs::create_dir_all(&metadata).unwrap();
        fs::write(metadata.join("image-version"), format!("{image}\n")).unwrap();
        mount("daemon", self.mount(), "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(self.mount().join("served-by"), image).unwrap();
    }

    fn daemon_goes(&self) {
        unmount(self.mount(), UnmountFlags::DETACH).unwrap();
    }

    /// A daemon that was killed: its mount stays and nobody serves it.
    fn daemon_dies(&self) {
        self.daemon_goes();
        drop(kernel::mount(&self.mount(), "fuse", MountFlags::empty(), "", Waiting::Blocks).unwrap());
    }

    async fn stage(&self) -> Result<(), Code> {
        let context = [
            ("fluid_path", self.mount().display().to_string()),
            ("runtime_namespace", "default".to_owned()),
            ("runtime_name", "data".to_owned()),
            ("mount_pod_node_selector_key", LABEL.to_owned()),
        ];
        let request = NodeStageVolumeRequest {
            volume_id: VOLUME.into(),
            staging_target_path: self.path("staging").display().to_string(),
            volume_capability: Some(capability()),
            volume_context: context.map(|(key, value)| (key.to_owned(), value)).into(),
        };
        self.plugin.node_stage_volume(Request::new(request)).await.map(drop).map_err(|status| status.code())
    }

    async fn publish(&self, target: &str) -> Result<(), Code> {
        let request = NodePublishVolumeRequest {
            volume_id: VOLUME.into(),
            staging_target_path: self.path("staging").display().to_string(),
            target_path: self.path(target).display().to_string(),
            volume_capability: Some(capability()),
            readonly: false,
            volume_context: HashMap::new(),
        };
        self.plugin.node_publish_volume(Request::new(request)).await.map(drop).map_err(|status| status.code())
    }

    async fn unpublish(&self, target: &str) -> Result<(), Code> {
        let target_path = self.path(target).display().to_string();
        let request = NodeUnpublishVolumeRequest { volume_id: VOLUME.into(), target_path };
        let done = self.plugin.node_unpublish_volume(Request::new(request)).await;
        done.map(drop).map_err(|status| status.code())
    }

    async fn unstage(&self) -> Result<(), Code> {
        let staging_target_path = self.path("staging").display().to_string();
        let request = NodeUnstageVolumeRequest { volume_id: VOLUME.into(), staging_target_path };
        let done = self.plugin.node_unstage_volume(Request::new(request)).await;
        done.map(drop).map_err(|status| status.code())
    }

    fn mounts(&self) -> usize {
        let own = self.folder.path();
        mounts::table().unwrap().iter().filter(|mounted| mounted.at.starts_with(own)).count()
    }

    async fn end(self) {
        self.server.shutdown().await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let own = self.folder.path();
        for mounted in
            mounts::table().unwrap_or_default().iter().filter(|mounted| mounted.at.starts_with(own))
        {
            let _ = unmount(&mounted.at, UnmountFlags::DETACH);
        }
    }
}

fn plugin(folder: &Path, client: &Client) -> Arc<NodeService> {
    let config = CsiConfig {
        node: NODE.into(),
        socket: folder.join("csi.sock"),
        state: folder.join("state"),
        patience: Duration::from_millis(300),
    };
    Arc::new(NodeService::open(config, client.clone()).unwrap())
}

fn capability() -> VolumeCapability {
    let access_type = Some(AccessType::Mount(MountVolume::default()));
    VolumeCapability { access_type, access_mode: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_daemon_goes_when_its_last_workload_does() {
    if skipped() {
        return;
    }
    let world = World::new().await;
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
    if skipped() {
        return;
    }
    let mut world = World::new().await;
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
    if skipped() {
        return;
    }
    let world = World::new().await;
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
async fn a_crashed_daemon_is_recovered_without_stacking_mounts() {
    if skipped() {
        return;
    }
    let world = World::new().await;
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    world.daemon_dies();
    assert_eq!(mounts::look(&world.mount()).unwrap(), Place::Dead);
    assert_eq!(world.publish("two").await, Err(Code::Unavailable));
    assert_eq!(mounts::look(&world.mount()).unwrap(), Place::Plain, "the dead mount was removed");
    world.daemon_comes("fuse:1");
    for _ in 0..3 {
        world.publish("one").await.unwrap();
    }
    fs::write(world.mount().join("file"), "new").unwrap();
    assert_eq!(fs::read(world.path("one/file")).unwrap(), b"new");
    assert_eq!(world.mounts(), 2);
    world.unpublish("one").await.unwrap();
    world.unpublish("one").await.unwrap();
    assert_eq!(world.mounts(), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_may_be_repeated_and_wrong_ones_are_refused() {
    if skipped() {
        return;
    }
    let mut world = World::new().await;
    assert_eq!(world.publish("one").await, Err(Code::FailedPrecondition), "not staged");
    world.unstage().await.unwrap();
    world.daemon_comes("fuse:1");
    for _ in 0..2 {
        world.stage().await.unwrap();
        world.publish("one").await.unwrap();
        world.restart();
    }
    assert_eq!(world.mounts(), 2);
    let stats = |volume: &str, path: PathBuf| {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.into(),
            volume_path: path.display().to_string(),
            staging_target_path: String::new(),
        };
        let plugin = Arc::clone(&world.plugin);
        async move {
            let stats = plugin.node_get_volume_stats(Request::new(request)).await;
            stats.map(|stats| stats.into_inner().usage.len()).map_err(|status| status.code())
        }
    };
    assert_eq!(stats(VOLUME, world.path("one")).await, Ok(2));
    assert_eq!(stats(VOLUME, world.path("none")).await, Err(Code::NotFound));
    assert_eq!(stats("another", world.path("one")).await, Err(Code::NotFound));
    assert_eq!(stats("", world.path("one")).await, Err(Code::InvalidArgument));
    for _ in 0..2 {
        world.unpublish("one").await.unwrap();
        world.unstage().await.unwrap();
    }
    assert_eq!(world.mounts(), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelet_reaches_both_services_on_one_socket() {
    let world = World::new().await;
    let socket = world.path("csi.sock");
    fs::write(&socket, "left by an earlier process").unwrap();
    let config = CsiConfig {
        node: NODE.into(),
        socket: socket.clone(),
        state: world.path("state"),
        patience: Duration::from_millis(300),
    };
    let (tell, told) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(super::serve(config, world.client.clone(), move || tell.send(()).unwrap()));
    told.await.unwrap();
    let connect = tower::service_fn(move |_: http::Uri| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connect).await.unwrap();
    let mut identity = IdentityClient::new(channel.clone());
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, super::DRIVER);
    identity.probe(ProbeRequest {}).await.unwrap();
    let mut node = NodeClient::new(channel);
    assert_eq!(node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner().node_id, NODE);
    let can = node.node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
    assert_eq!(can.capabilities.len(), 3);
    let refused = node.node_stage_volume(NodeStageVolumeRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
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
        let there = matches!(mounts::look(&world.mount()), Ok(Place::Served { .. }));
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
    if skipped() {
        return;
    }
    const CYCLES: usize = 20;
    let world = Arc::new(World::new().await);
    let follower = tokio::spawn(follow_the_label(Arc::clone(&world)));
    for cycle in 0..CYCLES {
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
    }
    follower.abort();
    // Its end is awaited, so that it touches no mount any more.
    let _ = follower.await;
    assert!(world.mounts() <= 1, "mounts pile up");
    assert_eq!(fs::read_dir(world.path("state")).unwrap().count(), 1);
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
    if skipped() {
        return;
    }
    let mut world = World::new().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_dies_at_any_write_is_continued_by_the_next() {
    if skipped() {
        return;
    }
    for write in 0..3 {
        for done in [false, true] {
            let mut world = World::new().await;
            let cut = Cut { write, done };
            world.plugin = plugin(world.folder.path(), &noted(&world.server, Some(cut)).0);
            // Each failure is the death of a process; the next one has a good connection.
            let mut deaths = 0;
            let mut tried = world.stage().await;
            if tried.is_err() {
                deaths += 1;
                world.restart();
                tried = world.stage().await;
            }
            assert_eq!((tried, world.labelled().await), (Ok(()), true), "{cut:?}");
            world.daemon_comes("fuse:1");
            world.publish("one").await.unwrap();
            world.want("fuse:2").await;
            world.unpublish("one").await.unwrap();
            let mut tried = world.unstage().await;
            if tried.is_err() {
                deaths += 1;
                world.restart();
                tried = world.unstage().await;
            }
            assert_eq!((tried, world.labelled().await), (Ok(()), false), "{cut:?}");
            world.daemon_goes();
            let mut tried = world.stage().await;
            if tried.is_err() {
                deaths += 1;
                world.restart();
                tried = world.stage().await;
            }
            assert_eq!((tried, world.labelled().await, deaths), (Ok(()), true, 1), "{cut:?}");
            world.end().await;
        }
    }
}
