//! A node with its plugin and an API server in this process. A daemon is stood for by a file
//! system that comes and goes with the node's label, as a DaemonSet would have it.

use std::{
    collections::HashMap,
    fs,
    io::Read,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{Node as NodeObject, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use midflight_api::fluid::{GENERATION_LABEL, IMAGE_VERSION_ANNOTATION, UPDATE_STRATEGY_ANNOTATION};
use midflight_apiserver::{ApiServer, Config, auth::Identity};
use midflight_handover::kernel::{self, Waiting};
use rustix::{
    io::{Errno, read, write},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};
use serde_json::json;
use tempfile::TempDir;
use tonic::{Code, Request};

use crate::csi::{
    CsiConfig, Images,
    mounts::Mounts,
    node::NodeService,
    proto::{
        NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
        NodeUnstageVolumeRequest, VolumeCapability,
        node_server::Node,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    },
};

pub(super) const NODE: &str = "node-1";
pub(super) const VOLUME: &str = "default-data";
pub(super) const LABEL: &str = "fluid.io/f-default-data";

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

pub(super) struct World {
    pub(super) folder: TempDir,
    pub(super) client: Client,
    pub(super) server: ApiServer,
    pub(super) plugin: Arc<NodeService>,
}

impl World {
    /// Nothing where this machine cannot mount.
    pub(super) async fn new() -> Option<World> {
        if skipped() {
            return None;
        }
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
        Some(world)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn mount(&self) -> PathBuf {
        self.path("runtime/juicefs-fuse")
    }

    /// Another process in the plugin's place.
    pub(super) fn restart(&mut self) {
        self.plugin = plugin(self.folder.path(), &self.client);
    }

    pub(super) async fn want(&self, image: &str) {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(self.client.clone());
        let patch = json!({ "metadata": { "annotations": { IMAGE_VERSION_ANNOTATION: image } } });
        claims.patch("data", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(super) async fn wanted(&self) -> String {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(self.client.clone());
        let annotations = claims.get("data").await.unwrap().metadata.annotations.unwrap();
        annotations[IMAGE_VERSION_ANNOTATION].clone()
    }

    pub(super) async fn labelled(&self) -> bool {
        let node = Api::<NodeObject>::all(self.client.clone()).get(NODE).await.unwrap();
        node.metadata.labels.is_some_and(|labels| labels.get(LABEL).is_some_and(|value| value == "true"))
    }

    /// A write of the label that was given up as lost is carried out late.
    pub(super) async fn label_comes_back(&self) {
        let patch = json!({ "metadata": { "labels": { LABEL: "true" } } });
        let nodes = Api::<NodeObject>::all(self.client.clone());
        nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// What a daemon's pod does when it starts.
    pub(super) fn daemon_comes(&self, image: &str) {
        fs::create_dir_all(self.mount()).unwrap();
        let metadata = self.path("runtime/.meta/fuse");
        fs::create_dir_all(&metadata).unwrap();
        fs::write(metadata.join("image-version"), format!("{image}\n")).unwrap();
        mount("daemon", self.mount(), "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(self.mount().join("served-by"), image).unwrap();
    }

    pub(super) fn daemon_goes(&self) {
        unmount(self.mount(), UnmountFlags::DETACH).unwrap();
    }

    /// A daemon that was killed: its mount stays and nobody serves it.
    pub(super) fn daemon_dies(&self) {
        self.daemon_goes();
        self.daemon_dies_at(&self.mount());
    }

    pub(super) fn daemon_dies_at(&self, at: &Path) {
        drop(kernel::mount(at, "fuse", MountFlags::empty(), "", Waiting::Blocks).unwrap());
    }

    /// A daemon that takes calls and answers none, as long as the handle is kept.
    pub(super) fn daemon_hangs(&self) -> OwnedFd {
        self.daemon_goes();
        kernel::mount(&self.mount(), "fuse", MountFlags::empty(), "", Waiting::Blocks).unwrap()
    }

    /// A daemon that answers every call with an error, until its mount has gone.
    pub(super) fn daemon_fails(&self) {
        let device = self.daemon_hangs();
        thread::spawn(move || while refuse_call(&device) != Err(Errno::NODEV) {});
    }

    /// A claim as Fluid's own controller makes it: a label, and nothing of ours.
    pub(super) async fn claim_of_fluid(&self, generation: &str) {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(self.client.clone());
        let patch = json!({ "metadata": {
            "annotations": { IMAGE_VERSION_ANNOTATION: null, UPDATE_STRATEGY_ANNOTATION: null },
            "labels": { GENERATION_LABEL: generation },
        } });
        claims.patch("data", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// A daemon of Fluid's: its labels, if at all, are in the dataset's own folder.
    pub(super) fn daemon_of_fluid_comes(&self, generation: Option<&str>) {
        let metadata = self.path("runtime/.meta/fuse");
        fs::create_dir_all(&metadata).unwrap();
        if let Some(generation) = generation {
            fs::write(
                metadata.join("labels"),
                format!("app=\"juicefs\"\n{GENERATION_LABEL}=\"{generation}\"\n"),
            )
            .unwrap();
        }
        fs::create_dir_all(self.mount()).unwrap();
        mount("daemon", self.mount(), "tmpfs", MountFlags::empty(), None).unwrap();
    }

    pub(super) async fn remove_claim(&self) {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(self.client.clone());
        claims.delete("data", &DeleteParams::default()).await.unwrap();
    }

    /// What people were told.
    pub(super) async fn events(&self) -> Vec<String> {
        let events = Api::<Event>::default_namespaced(self.client.clone());
        let events = events.list(&ListParams::default()).await.unwrap();
        let told = |event: Event| {
            format!("{}: {}", event.reason.unwrap_or_default(), event.note.unwrap_or_default())
        };
        events.items.into_iter().map(told).collect()
    }

    /// What the plugin keeps of volumes and daemons.
    pub(super) fn notes(&self) -> usize {
        let kept = ["volumes", "leaving", "idle"]
            .map(|name| fs::read_dir(self.path("state").join(name)).unwrap().count());
        kept.iter().sum()
    }

    pub(super) async fn stage(&self) -> Result<(), Code> {
        self.stage_as(VOLUME, &[]).await
    }

    /// Stages a volume of the same dataset.
    pub(super) async fn stage_as(&self, volume: &str, more: &[(&str, &str)]) -> Result<(), Code> {
        let mount = self.mount().display().to_string();
        let context = [
            ("fluid_path", mount.as_str()),
            ("runtime_namespace", "default"),
            ("runtime_name", "data"),
            ("mount_pod_node_selector_key", LABEL),
        ];
        let context = context.iter().chain(more);
        let request = NodeStageVolumeRequest {
            volume_id: volume.into(),
            staging_target_path: self.path("staging").display().to_string(),
            volume_capability: Some(capability(Mode::MultiNodeMultiWriter)),
            volume_context: context.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        };
        self.plugin.node_stage_volume(Request::new(request)).await.map(drop).map_err(|status| status.code())
    }

    pub(super) async fn publish(&self, target: &str) -> Result<(), Code> {
        self.publish_as(VOLUME, target, Mode::MultiNodeMultiWriter).await
    }

    pub(super) async fn publish_as(&self, volume: &str, target: &str, mode: Mode) -> Result<(), Code> {
        let [staging, target] = ["staging", target].map(|name| self.path(name).display().to_string());
        self.publish_from(volume, &staging, &target, mode).await
    }

    /// The same with paths as they are.
    pub(super) async fn publish_from(
        &self,
        volume: &str,
        staging: &str,
        target: &str,
        mode: Mode,
    ) -> Result<(), Code> {
        let request = NodePublishVolumeRequest {
            volume_id: volume.into(),
            staging_target_path: staging.into(),
            target_path: target.into(),
            volume_capability: Some(capability(mode)),
            readonly: false,
            volume_context: HashMap::new(),
        };
        self.plugin.node_publish_volume(Request::new(request)).await.map(drop).map_err(|status| status.code())
    }

    pub(super) async fn unpublish(&self, target: &str) -> Result<(), Code> {
        self.unpublish_as(VOLUME, target).await
    }

    pub(super) async fn unpublish_as(&self, volume: &str, target: &str) -> Result<(), Code> {
        let target_path = self.path(target).display().to_string();
        let request = NodeUnpublishVolumeRequest { volume_id: volume.into(), target_path };
        let done = self.plugin.node_unpublish_volume(Request::new(request)).await;
        done.map(drop).map_err(|status| status.code())
    }

    pub(super) async fn unstage(&self) -> Result<(), Code> {
        self.unstage_as(VOLUME, "staging").await
    }

    pub(super) async fn unstage_as(&self, volume: &str, staging: &str) -> Result<(), Code> {
        let staging_target_path = self.path(staging).display().to_string();
        let request = NodeUnstageVolumeRequest { volume_id: volume.into(), staging_target_path };
        let done = self.plugin.node_unstage_volume(Request::new(request)).await;
        done.map(drop).map_err(|status| status.code())
    }

    pub(super) fn mounts(&self) -> usize {
        let own = self.folder.path();
        Mounts::Machine.table().unwrap().iter().filter(|mounted| mounted.at.starts_with(own)).count()
    }

    pub(super) async fn end(self) {
        self.server.shutdown().await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let own = self.folder.path();
        for mounted in
            Mounts::Machine.table().unwrap_or_default().iter().filter(|mounted| mounted.at.starts_with(own))
        {
            let _ = unmount(&mounted.at, UnmountFlags::DETACH);
        }
    }
}

/// Reads a call of the kernel's, and says that the storage fails.
fn refuse_call(device: &OwnedFd) -> Result<(), Errno> {
    const INIT: u32 = 26;
    /// Calls for which no answer is waited.
    const FORGET: u32 = 2;
    const BATCH_FORGET: u32 = 42;
    let mut call = vec![0; 1 << 16];
    read(device, &mut call[..])?;
    let opcode = u32::from_ne_bytes(call[4..8].try_into().unwrap());
    let (error, body): (i32, &[u32]) = match opcode {
        FORGET | BATCH_FORGET => return Ok(()),
        // Version, flags, and the most that one call may write.
        INIT => (0, &[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        _ => (-Errno::IO.raw_os_error(), &[]),
    };
    let length = u32::try_from(16 + 4 * body.len()).unwrap();
    let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &call[8..16]].concat();
    let body = body.iter().flat_map(|word| word.to_ne_bytes());
    write(device, &head.into_iter().chain(body).collect::<Vec<u8>>()).map(drop)
}

/// A process that sees mounts come and go, and makes none that others see; as those of pods do.
pub(super) struct Workload(Child);

impl Workload {
    pub(super) fn start() -> Workload {
        Workload::run("echo; exec sleep 600")
    }

    /// One that was given what is at a place now, and finds it at another.
    pub(super) fn start_with(place: &Path, at: &Path) -> Workload {
        fs::create_dir_all(at).unwrap();
        let (place, at) = (place.display(), at.display());
        Workload::run(&format!("mount --bind {place} {at}; echo; exec sleep 600"))
    }

    fn run(script: &str) -> Workload {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "slave", "sh", "-c", script]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        // Its view is its own once it has said something.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Workload(child)
    }

    /// Where its view of a path is.
    pub(super) fn view(&self, path: &Path) -> PathBuf {
        Path::new("/proc").join(self.0.id().to_string()).join("root").join(path.strip_prefix("/").unwrap())
    }

    pub(super) fn read(&self, path: &Path) -> String {
        fs::read_to_string(self.view(path)).unwrap()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub(super) fn config(folder: &Path) -> CsiConfig {
    CsiConfig {
        node: NODE.into(),
        socket: folder.join("csi.sock"),
        root: "/".into(),
        state: folder.join("state"),
        patience: Duration::from_millis(300),
        look_at_idle_every: Duration::from_millis(20),
    }
}

pub(super) fn plugin(folder: &Path, client: &Client) -> Arc<NodeService> {
    Arc::new(NodeService::open(config(folder), client.clone(), Mounts::Machine, Images::Kubelet).unwrap())
}

/// One of a node that can be asked for images; it gets those that are named.
pub(super) fn plugin_with_images(
    folder: &Path,
    client: &Client,
    images: &'static [&str],
) -> Arc<NodeService> {
    let bring = move |image: String| {
        let brought = if images.contains(&image.as_str()) { Ok(()) } else { Err("nobody has it".to_owned()) };
        std::future::ready(brought).boxed()
    };
    let images = Images::Agent(Arc::new(bring));
    Arc::new(NodeService::open(config(folder), client.clone(), Mounts::Machine, images).unwrap())
}

pub(super) fn capability(mode: Mode) -> VolumeCapability {
    let access_type = Some(AccessType::Mount(MountVolume::default()));
    VolumeCapability { access_type, access_mode: Some(AccessMode { mode: mode.into() }) }
}
