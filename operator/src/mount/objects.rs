//! The objects that a dataset becomes; upstream's names, seed 003's fields.
//!
//! The invariant: all that differs between two versions of a daemon is in the pods' template, so its
//! digest tells them apart.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use midflight_api::fluid::{
    DRIVER, Dataset, FuseSpec, GENERATION_LABEL, GENERATION_VARIABLE, IMAGE_VERSION_ANNOTATION,
    IMAGE_VERSION_VARIABLE, JuiceFSRuntime, NoFolder, UPDATE_STRATEGY_ANNOTATION,
};
use midflight_plan::mount::dataset::{Asked, Claim, Daemons, Generation, digest};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::controller::Key;

/// Annotation of a DaemonSet: digest of the template it was made from.
const TEMPLATE_ANNOTATION: &str = "midflight.dev/fuse-template";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const STORAGE_CLASS: &str = "fluid";
/// How many threads a daemon may have.
const THREADS: std::ops::RangeInclusive<u16> = 1..=64;
/// Where daemons mount on every node, by the type of their runtime.
const MOUNT_ROOT: &str = "/runtime-mnt";

/// A runtime that serves datasets through FUSE pods. A kind joins by saying this of itself.
pub(super) trait FuseRuntime: Resource<DynamicType = ()> {
    /// Upstream's word for the kind; its pods, paths and volumes are named after it.
    const TYPE: &'static str;

    fn fuse(&self) -> &FuseSpec;
}

impl FuseRuntime for JuiceFSRuntime {
    const TYPE: &'static str = "juicefs";

    fn fuse(&self) -> &FuseSpec {
        &self.spec.fuse
    }
}

/// What the daemons of a dataset are made from.
pub(super) struct Design<'a> {
    key: &'a Key,
    /// Type of the runtime.
    kind: &'static str,
    fuse: &'a FuseSpec,
    /// The runtime, with which the daemons go.
    owner: Option<OwnerReference>,
    dataset: &'a Dataset,
    /// Folder on the nodes.
    source: &'a str,
}

impl<'a> Design<'a> {
    /// Only folders of the nodes are served.
    pub(super) fn new<R: FuseRuntime>(
        key: &'a Key,
        runtime: &'a R,
        dataset: &'a Dataset,
    ) -> Result<Design<'a>, NoFolder> {
        let (kind, fuse, owner) = (R::TYPE, runtime.fuse(), runtime.controller_owner_ref(&()));
        Ok(Design { key, kind, fuse, owner, dataset, source: dataset.folder()? })
    }

    pub(super) fn asked(&self) -> Asked {
        let strategy = if self.fuse.replaces_idle_pods() { "OnIdle" } else { "OnDelete" };
        Asked { image: image(self.fuse), strategy: strategy.into() }
    }

    /// What is named after the runtime's type: `juicefs-fuse` and the like.
    fn named(&self, what: &str) -> String {
        format!("{}-{what}", self.kind)
    }

    fn folder(&self) -> String {
        format!("{MOUNT_ROOT}/{}/{}/{}", self.kind, self.key.namespace, self.key.name)
    }

    /// Where a pod writes down what it is. Not in the folder whose mounts the node sees: it is mounted itself.
    fn metadata(&self) -> String {
        format!("{MOUNT_ROOT}/{}/{}/.meta/{}", self.kind, self.key.namespace, self.key.name)
    }

    fn mount(&self) -> String {
        format!("{}/{}", self.folder(), self.named("fuse"))
    }

    fn labels(&self) -> BTreeMap<&'static str, String> {
        let labels =
            [("app", self.kind.to_owned()), ("role", self.named("fuse")), ("release", self.key.name.clone())];
        labels.into()
    }

    /// The label that brings the daemon to a node; upstream's name, and upstream's way to shorten it.
    fn node_label(&self) -> String {
        const TOO_LONG: usize = 63;
        let label = format!("fluid.io/f-{}-{}", self.key.namespace, self.key.name);
        match self.dataset.uid() {
            Some(uid) if label.len() >= TOO_LONG => format!("fluid.io/f-{uid}"),
            _ => label,
        }
    }

    /// The command that writes down which image and which generation a pod was made for.
    fn post_start(&self) -> String {
        let metadata = self.metadata();
        let (image, generation) = (IMAGE_VERSION_VARIABLE, GENERATION_VARIABLE);
        format!(
            "if [ ! -z ${image} ]; then echo ${image} > {metadata}/image-version; fi; \
             if [ ! -z ${generation} ]; then echo {GENERATION_LABEL}=\\\"${generation}\\\" > {metadata}/labels; fi"
        )
    }

    /// The options that daemons do not have, or not with that value; by name.
    pub(super) fn unheeded(&self) -> Vec<&str> {
        let is_heeded = |(name, value): &(&str, &str)| match *name {
            "exclusive" => true,
            "threads" => threads(value).is_some(),
            _ => false,
        };
        let all = self.fuse.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(|option| !is_heeded(option)).map(|(name, _)| name).collect()
    }

    fn arguments(&self) -> Value {
        let mut command: Vec<String> =
            ["fuse", "--source", self.source, "--mount", &self.mount()].map(str::to_owned).into();
        command.extend(self.dataset.is_read_only().then(|| "--read-only".to_owned()));
        let options = &self.fuse.options;
        let is_set = |name: &str| options.get(name).is_some_and(|value| value.as_str() != "false");
        command.extend(is_set("exclusive").then(|| "--exclusive".to_owned()));
        if let Some(threads) = options.get("threads").and_then(|value| threads(value.as_str())) {
            command.extend(["--threads".to_owned(), threads.to_string()]);
        }
        json!(command)
    }

    /// Nodes that may have a daemon, once they are labelled.
    pub(super) fn node_selector(&self) -> BTreeMap<String, String> {
        let theirs = self.fuse.node_selector.iter();
        let theirs = theirs.map(|(key, value)| (key.clone(), value.as_str().to_owned()));
        theirs.chain([(self.node_label(), "true".to_owned())]).collect()
    }

    /// The pods' template without its generation, and without the nodes: those never change, for a pod whose node is not among them any more
    /// is ended, whoever uses it.
    fn template(&self) -> Value {
        let fuse = self.fuse;
        let mut environment = vec![json!({ "name": IMAGE_VERSION_VARIABLE, "value": image(fuse) })];
        // What a pod says of itself is not the user's to say.
        let is_ours = |name: &str| [IMAGE_VERSION_VARIABLE, GENERATION_VARIABLE].contains(&name);
        let theirs = fuse.env.iter().map(|variable| json!(variable));
        environment.extend(theirs.filter(|variable| !variable["name"].as_str().is_some_and(is_ours)));
        let mut labels = json!(fuse.pod_metadata.labels);
        extend(&mut labels, &self.labels());
        let host_path = |name: &str, path: &str, kind: &str| json!({ "name": name, "hostPath": { "path": path, "type": kind } });
        let metadata = self.metadata();
        let (mount_volume, metadata_volume) = (self.named("fuse-mount"), self.named("fuse-meta"));
        json!({
            "metadata": { "labels": labels, "annotations": fuse.pod_metadata.annotations },
            "spec": {
                // Wherever a workload may run, its daemon must.
                "tolerations": [{ "operator": "Exists" }],
                "containers": [{
                    "name": self.named("fuse"),
                    "image": image(fuse),
                    "args": self.arguments(),
                    "env": environment,
                    "resources": fuse.resources,
                    "securityContext": { "privileged": true },
                    "lifecycle": {
                        "postStart": { "exec": { "command": ["sh", "-c", self.post_start()] } },
                    },
                    "volumeMounts": [
                        { "name": mount_volume, "mountPath": self.folder(), "mountPropagation": "Bidirectional" },
                        { "name": metadata_volume, "mountPath": metadata },
                        { "name": "dataset", "mountPath": self.source },
                    ],
                }],
                "volumes": [
                    host_path(&mount_volume, &self.folder(), "DirectoryOrCreate"),
                    host_path(&metadata_volume, &metadata, "DirectoryOrCreate"),
                    host_path("dataset", self.source, "Directory"),
                ],
            },
        })
    }

    pub(super) fn digest(&self) -> String {
        digest(&self.template().to_string())
    }

    pub(super) fn daemon_set(&self, generation: Generation) -> DaemonSet {
        let mut template = self.template();
        let generation = generation.to_string();
        template["metadata"]["labels"][GENERATION_LABEL] = json!(generation);
        template["spec"]["nodeSelector"] = json!(self.node_selector());
        if let Some(environment) = template["spec"]["containers"][0]["env"].as_array_mut() {
            environment.push(json!({ "name": GENERATION_VARIABLE, "value": generation }));
        }
        object(json!({
            "metadata": {
                "name": daemon_set_key(self.key).name,
                "namespace": self.key.namespace,
                "labels": { MANAGED_BY: "midflight" },
                "annotations": { TEMPLATE_ANNOTATION: self.digest() },
                "ownerReferences": [self.owner],
            },
            "spec": {
                "selector": { "matchLabels": self.labels() },
                "updateStrategy": { "type": "OnDelete" },
                "template": template,
            },
        }))
    }

    fn access_modes(&self) -> Value {
        match self.dataset.spec.access_modes.as_slice() {
            [] => json!(["ReadOnlyMany"]),
            modes => json!(modes),
        }
    }

    pub(super) fn volume(&self) -> PersistentVolume {
        let name = volume_name(self.key);
        object(json!({
            "metadata": { "name": name, "labels": { MANAGED_BY: "midflight" } },
            "spec": {
                "accessModes": self.access_modes(),
                "capacity": { "storage": "100Pi" },
                "claimRef": { "namespace": self.key.namespace, "name": self.key.name },
                "storageClassName": STORAGE_CLASS,
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {
                    "driver": DRIVER,
                    "volumeHandle": name,
                    "volumeAttributes": {
                        "fluid_path": self.mount(),
                        "mount_type": "fuse.midflight",
                        "runtime_namespace": self.key.namespace,
                        "runtime_name": self.key.name,
                        "mount_pod_node_selector_key": self.node_label(),
                    },
                },
            },
        }))
    }

    pub(super) fn claim(&self, generation: Generation) -> PersistentVolumeClaim {
        let mut claim = object(json!({
            "metadata": {
                "name": self.key.name,
                "namespace": self.key.namespace,
                "labels": { MANAGED_BY: "midflight" },
                "ownerReferences": [self.dataset.controller_owner_ref(&())],
            },
            "spec": {
                "accessModes": self.access_modes(),
                "resources": { "requests": { "storage": "100Pi" } },
                "storageClassName": STORAGE_CLASS,
                "volumeName": volume_name(self.key),
            },
        }));
        self.ask(&mut claim, generation);
        claim
    }

    /// Writes into a claim which daemons are wanted.
    pub(super) fn ask(&self, claim: &mut PersistentVolumeClaim, generation: Generation) {
        let Asked { image, strategy } = self.asked();
        claim.labels_mut().insert(GENERATION_LABEL.into(), generation.to_string());
        claim.annotations_mut().insert(IMAGE_VERSION_ANNOTATION.into(), image);
        claim.annotations_mut().insert(UPDATE_STRATEGY_ANNOTATION.into(), strategy);
    }
}

fn object<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).expect("an object that is written here has its kind's shape")
}

fn extend(map: &mut Value, more: &BTreeMap<&str, String>) {
    for (key, value) in more {
        map[*key] = json!(value);
    }
}

/// Nodes that may have one of the daemons that are there.
pub(super) fn node_selector(seen: &DaemonSet) -> Option<&BTreeMap<String, String>> {
    seen.spec.as_ref()?.template.spec.as_ref()?.node_selector.as_ref()
}

fn image(fuse: &FuseSpec) -> String {
    match (fuse.image.as_str(), fuse.image_tag.as_str()) {
        ("", "") => "midflight.local/fuse:latest".into(),
        ("", tag) => format!("midflight.local/fuse:{tag}"),
        (image, "") => image.into(),
        (image, tag) => format!("{image}:{tag}"),
    }
}

pub(super) fn daemon_set_key(key: &Key) -> Key {
    Key::new(&key.namespace, &format!("{}-fuse", key.name))
}

/// Upstream's name of a dataset's volume.
pub(super) fn volume_name(key: &Key) -> String {
    midflight_api::fluid::volume_name(&key.namespace, &key.name)
}

pub(super) fn daemons(seen: &DaemonSet) -> Daemons {
    let spec = seen.spec.as_ref();
    let labels = spec.and_then(|spec| spec.template.metadata.as_ref()).and_then(|data| data.labels.as_ref());
    let generation = Generation::read(labels.and_then(|labels| labels.get(GENERATION_LABEL)));
    let template = seen.annotations().get(TEMPLATE_ANNOTATION).cloned().unwrap_or_default();
    Daemons { template, generation: generation.unwrap_or_default() }
}

pub(super) fn claimed(seen: &PersistentVolumeClaim) -> Claim {
    let say = |key: &str| seen.annotations().get(key).cloned();
    let asked = say(IMAGE_VERSION_ANNOTATION).zip(say(UPDATE_STRATEGY_ANNOTATION));
    Claim {
        generation: Generation::read(seen.labels().get(GENERATION_LABEL)),
        asked: asked.map(|(image, strategy)| Asked { image, strategy }),
    }
}

/// Whether a volume was made here.
pub(super) fn is_ours(volume: &PersistentVolume) -> bool {
    volume.labels().get(MANAGED_BY).is_some_and(|by| by == "midflight")
}

/// What a daemon can be told; another number would keep it from starting.
fn threads(value: &str) -> Option<u16> {
    value.parse().ok().filter(|threads| THREADS.contains(threads))
}

#[cfg(test)]
mod tests {
    use midflight_api::fluid::UpdateStrategy;

    use super::*;

    /// A kind that is not there yet; it borrows the shape of one that is.
    struct Another(JuiceFSRuntime);

    impl Resource for Another {
        type DynamicType = ();
        type Scope = kube::core::NamespaceResourceScope;

        fn kind(_: &()) -> std::borrow::Cow<'_, str> {
            "AnotherRuntime".into()
        }
        fn group(_: &()) -> std::borrow::Cow<'_, str> {
            "data.fluid.io".into()
        }
        fn version(_: &()) -> std::borrow::Cow<'_, str> {
            "v1alpha1".into()
        }
        fn plural(_: &()) -> std::borrow::Cow<'_, str> {
            "anotherruntimes".into()
        }
        fn meta(&self) -> &kube::core::ObjectMeta {
            self.0.meta()
        }
        fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
            self.0.meta_mut()
        }
    }

    impl FuseRuntime for Another {
        const TYPE: &'static str = "another";

        fn fuse(&self) -> &FuseSpec {
            &self.0.spec.fuse
        }
    }

    #[test]
    fn daemons_and_plugins_know_the_same_label_however_long_names_are() {
        let named = |uid| json!({ "name": "data", "uid": uid });
        let runtime: JuiceFSRuntime = object(json!({ "metadata": named("1"), "spec": {} }));
        let dataset: Dataset = object(json!({
            "metadata": named("1-2-3"), "spec": { "mounts": [{ "mountPoint": "local:///srv/data" }] },
        }));
        let longest = "n".repeat(62 - "fluid.io/f-default-".len());
        for (name, expected) in [
            (longest.clone(), format!("fluid.io/f-default-{longest}")),
            (format!("{longest}n"), "fluid.io/f-1-2-3".to_owned()),
        ] {
            let key = Key::new("default", &name);
            let design = Design::new(&key, &runtime, &dataset).unwrap();
            let (set, volume) = (json!(design.daemon_set(Generation::FIRST)), json!(design.volume()));
            assert_eq!(set["spec"]["template"]["spec"]["nodeSelector"], json!({ &expected: "true" }));
            assert_eq!(volume["spec"]["csi"]["volumeAttributes"]["mount_pod_node_selector_key"], expected);
        }
    }

    #[test]
    fn options_that_change_nothing_are_named() {
        let dataset: Dataset = object(json!({
            "metadata": { "name": "data" }, "spec": { "mounts": [{ "mountPoint": "local:///srv/data" }] },
        }));
        let (key, options) = (Key::new("default", "data"), |options: Value| -> JuiceFSRuntime {
            object(
                json!({ "metadata": { "name": "data", "uid": "1" }, "spec": { "fuse": { "options": options } } }),
            )
        });
        let runtime =
            options(json!({ "exclusive": "true", "threads": "65", "cache-size": "1", "verbose": "" }));
        let design = Design::new(&key, &runtime, &dataset).unwrap();
        assert_eq!(design.unheeded(), ["cache-size", "threads", "verbose"]);
        let runtime = options(json!({ "exclusive": "true", "threads": "2" }));
        assert!(Design::new(&key, &runtime, &dataset).unwrap().unheeded().is_empty());
    }

    #[test]
    fn nobody_else_says_what_a_daemon_is_or_whose() {
        let dataset: Dataset = object(json!({
            "metadata": { "name": "data" }, "spec": { "mounts": [{ "mountPoint": "local:///srv/data" }] },
        }));
        let runtime: JuiceFSRuntime = object(
            json!({ "metadata": { "name": "data", "uid": "1" }, "spec": { "fuse": {
            "image": "fuse", "imageTag": "1",
            "env": [{ "name": IMAGE_VERSION_VARIABLE, "value": "other" }, { "name": "LEVEL", "value": "debug" }],
            "podMetadata": { "labels": { "app": "other", "team": "data" } },
            "nodeSelector": { "fluid.io/f-default-data": "false", "disk": "ssd" },
        } } }),
        );
        let key = Key::new("default", "data");
        let set = json!(Design::new(&key, &runtime, &dataset).unwrap().daemon_set(Generation::FIRST));
        let template = &set["spec"]["template"];
        let expected = json!([
            { "name": IMAGE_VERSION_VARIABLE, "value": "fuse:1" },
            { "name": "LEVEL", "value": "debug" },
            { "name": GENERATION_VARIABLE, "value": "1" },
        ]);
        assert_eq!(template["spec"]["containers"][0]["env"], expected);
        let labels = &template["metadata"]["labels"];
        assert_eq!((&labels["app"], &labels["team"]), (&json!("juicefs"), &json!("data")));
        let nodes = json!({ "fluid.io/f-default-data": "true", "disk": "ssd" });
        assert_eq!(template["spec"]["nodeSelector"], nodes);
    }

    #[test]
    fn a_daemon_has_the_threads_that_are_asked_for() {
        let dataset: Dataset = object(json!({
            "metadata": { "name": "data" }, "spec": { "mounts": [{ "mountPoint": "local:///srv/data" }] },
        }));
        let key = Key::new("default", "data");
        for (threads, expected) in
            [("8", Some("8")), ("64", Some("64")), ("0", None), ("65", None), ("many", None)]
        {
            let runtime: JuiceFSRuntime = object(json!({
                "metadata": { "name": "data", "uid": "1" }, "spec": { "fuse": { "options": { "threads": threads } } },
            }));
            let set = json!(Design::new(&key, &runtime, &dataset).unwrap().daemon_set(Generation::FIRST));
            let pod = &set["spec"]["template"]["spec"];
            let arguments = pod["containers"][0]["args"].as_array().unwrap();
            let given = arguments.iter().skip_while(|argument| **argument != "--threads").nth(1);
            assert_eq!(given.and_then(|given| given.as_str()), expected, "{threads}");
        }
    }

    #[test]
    fn another_runtime_joins_by_its_type_and_its_fuse_pods() {
        let dataset: Dataset = object(json!({
            "metadata": { "name": "data" }, "spec": { "mounts": [{ "mountPoint": "local:///srv/data" }] },
        }));
        let mut runtime: JuiceFSRuntime = object(json!({
            "metadata": { "name": "data", "uid": "1" }, "spec": { "fuse": { "image": "fuse", "imageTag": "1" } },
        }));
        runtime.spec.fuse.update_strategy = UpdateStrategy::OnIdle;
        let (key, runtime) = (Key::new("default", "data"), Another(runtime));
        let design = Design::new(&key, &runtime, &dataset).unwrap();
        assert_eq!(design.asked(), Asked { image: "fuse:1".into(), strategy: "OnIdle".into() });
        let set = json!(design.daemon_set(Generation::FIRST));
        assert_eq!(set["metadata"]["ownerReferences"][0]["kind"], "AnotherRuntime");
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["name"], "another-fuse");
        assert_eq!(pod["volumes"][0]["name"], "another-fuse-mount");
        assert_eq!(pod["volumes"][1]["hostPath"]["path"], "/runtime-mnt/another/default/.meta/data");
        let volume = json!(design.volume());
        assert_eq!(
            volume["spec"]["csi"]["volumeAttributes"]["fluid_path"],
            "/runtime-mnt/another/default/data/another-fuse"
        );
    }
}
