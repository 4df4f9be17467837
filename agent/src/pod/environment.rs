//! What a container finds in its environment.
//!
//! The one invariant: a variable that another refers to is one that comes before it, as Kubernetes has it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use kube::ResourceExt;

/// Content of ConfigMaps and Secrets that containers refer to, as `KIND/NAME` and key.
#[derive(Debug, Default)]
pub(super) struct Sources(BTreeMap<String, BTreeMap<String, String>>);

/// Where the values of one variable or many come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    ConfigMap(String),
    Secret(String),
}

impl Source {
    fn key(&self) -> String {
        match self {
            Source::ConfigMap(name) => format!("configmap {name}"),
            Source::Secret(name) => format!("secret {name}"),
        }
    }
}

impl Sources {
    pub(super) fn add(&mut self, source: &Source, content: BTreeMap<String, String>) {
        self.0.insert(source.key(), content);
    }

    /// All that a container refers to.
    pub(super) fn wanted(container: &Container) -> Vec<Source> {
        let mut all = Vec::new();
        for variable in container.env.iter().flatten() {
            let Some(from) = &variable.value_from else { continue };
            all.extend(from.config_map_key_ref.iter().map(|key| Source::ConfigMap(key.name.clone())));
            all.extend(from.secret_key_ref.iter().map(|key| Source::Secret(key.name.clone())));
        }
        for from in container.env_from.iter().flatten() {
            all.extend(from.config_map_ref.iter().map(|map| Source::ConfigMap(map.name.clone())));
            all.extend(from.secret_ref.iter().map(|secret| Source::Secret(secret.name.clone())));
        }
        all.sort();
        all.dedup();
        all
    }

    fn value(&self, source: &Source, key: &str, optional: Option<bool>) -> Result<Option<String>, String> {
        let found = self.0.get(&source.key()).and_then(|content| content.get(key)).cloned();
        match found {
            None if optional != Some(true) => Err(format!("{} has no key {key}", source.key())),
            found => Ok(found),
        }
    }

    fn all(&self, source: &Source, optional: Option<bool>) -> Result<BTreeMap<String, String>, String> {
        match self.0.get(&source.key()) {
            None if optional != Some(true) => Err(format!("there is no {}", source.key())),
            found => Ok(found.cloned().unwrap_or_default()),
        }
    }
}

/// What the node tells every container besides.
pub(super) struct Place<'a> {
    pub(super) node_name: &'a str,
    pub(super) address: String,
    /// Where hostPath volumes lie, as processes outside of containers see it.
    pub(super) folder: String,
    pub(super) run: String,
}

/// All variables, later ones before earlier ones of the same name.
pub(super) fn environment(
    pod: &Pod,
    container: &Container,
    image: &[String],
    sources: &Sources,
    place: &Place<'_>,
) -> Result<Vec<(String, String)>, String> {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let defaults = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/root"),
        ("HOSTNAME", &pod.name_any()),
        ("MIDFLIGHT_NODE_FOLDER", &place.folder),
        ("MIDFLIGHT_NODE_RUN", &place.run),
    ];
    all.extend(defaults.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let image = image.iter().filter_map(|entry| entry.split_once('='));
    all.extend(image.map(|(name, value)| (name.to_owned(), value.to_owned())));
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.clone().unwrap_or_default();
        let mut content = BTreeMap::new();
        if let Some(map) = &from.config_map_ref {
            content.extend(sources.all(&Source::ConfigMap(map.name.clone()), map.optional)?);
        }
        if let Some(secret) = &from.secret_ref {
            content.extend(sources.all(&Source::Secret(secret.name.clone()), secret.optional)?);
        }
        all.extend(content.into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)));
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = value(pod, variable, &all, sources, place)? {
            all.insert(variable.name.clone(), value);
        }
    }
    Ok(all.into_iter().collect())
}

fn value(
    pod: &Pod,
    variable: &EnvVar,
    known: &BTreeMap<String, String>,
    sources: &Sources,
    place: &Place<'_>,
) -> Result<Option<String>, String> {
    let Some(from) = &variable.value_from else {
        return Ok(Some(expand(variable.value.as_deref().unwrap_or_default(), known)));
    };
    if let Some(field) = &from.field_ref {
        let found = self::field(pod, &field.field_path, place);
        return found.map(Some).ok_or_else(|| format!("{}: no field {}", variable.name, field.field_path));
    }
    if let Some(key) = &from.config_map_key_ref {
        return sources.value(&Source::ConfigMap(key.name.clone()), &key.key, key.optional);
    }
    if let Some(key) = &from.secret_key_ref {
        return sources.value(&Source::Secret(key.name.clone()), &key.key, key.optional);
    }
    Err(format!("{}: nodes of this cluster know no such source of a value", variable.name))
}

/// A field of the pod, as `fieldRef` names it.
fn field(pod: &Pod, path: &str, place: &Place<'_>) -> Option<String> {
    let metadata = &pod.metadata;
    let keyed = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']").map(str::to_owned);
    if let Some(key) = keyed("metadata.labels['") {
        return Some(metadata.labels.as_ref().and_then(|all| all.get(&key)).cloned().unwrap_or_default());
    }
    if let Some(key) = keyed("metadata.annotations['") {
        return Some(
            metadata.annotations.as_ref().and_then(|all| all.get(&key)).cloned().unwrap_or_default(),
        );
    }
    match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "spec.nodeName" => Some(place.node_name.to_owned()),
        "spec.serviceAccountName" => {
            let name = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
            Some(name.unwrap_or_else(|| "default".to_owned()))
        }
        "status.hostIP" | "status.podIP" | "status.hostIPs" | "status.podIPs" => Some(place.address.clone()),
        _ => None,
    }
}

/// Puts values in the place of `$(NAME)`; `$$(NAME)` and names that nobody knows stay as they are.
pub(super) fn expand(text: &str, known: &BTreeMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            expanded.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix("$(").and_then(|inner| Some(&inner[..inner.find(')')?]));
        match name.and_then(|name| Some((name, known.get(name)?))) {
            Some((name, value)) => {
                expanded.push_str(value);
                rest = &rest[name.len() + 3..];
            }
            None => {
                expanded.push('$');
                rest = &rest[1..];
            }
        }
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "callers make the values in place")]
    fn variables(env: Value, env_from: Value, sources: &Sources) -> Result<BTreeMap<String, String>, String> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "u", "labels": { "app": "x" } },
            "spec": { "containers": [{ "name": "c", "env": env, "envFrom": env_from }] },
        }))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let place =
            Place { node_name: "node-1", address: "127.0.0.2".into(), folder: "/f".into(), run: "/r".into() };
        let all = environment(&pod, container, &["A=image".into(), "B=image".into()], sources, &place)?;
        Ok(all.into_iter().collect())
    }

    #[test]
    fn values_come_from_the_pod_its_node_and_what_comes_before() {
        let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
        let env = json!([
            { "name": "A", "value": "own" },
            { "name": "C", "value": "$(A) $(B) $$(A) $(NOBODY) $" },
            field("NODE", "spec.nodeName"),
            field("IP", "status.podIP"),
            field("LABEL", "metadata.labels['app']"),
        ]);
        let all = variables(env, json!([]), &Sources::default()).unwrap();
        let of = |name: &str| all[name].as_str();
        assert_eq!(
            [of("A"), of("B"), of("NODE"), of("IP"), of("LABEL")],
            ["own", "image", "node-1", "127.0.0.2", "x"]
        );
        assert_eq!(of("C"), "own image $(A) $(NOBODY) $");
        assert_eq!([of("HOSTNAME"), of("MIDFLIGHT_NODE_FOLDER")], ["p", "/f"]);
    }

    #[test]
    fn values_come_from_config_maps_and_secrets() {
        let mut sources = Sources::default();
        sources.add(&Source::ConfigMap("m".into()), [("K".into(), "map".into())].into());
        sources.add(&Source::Secret("s".into()), [("K".into(), "secret".into())].into());
        let key = |kind: &str, name: &str, key: &str| json!([{ "name": "X", "valueFrom": { kind: { "name": name, "key": key } } }]);
        let of = |env: Value| variables(env, json!([]), &sources).map(|all| all["X"].clone());
        assert_eq!(of(key("configMapKeyRef", "m", "K")), Ok("map".into()));
        assert_eq!(of(key("secretKeyRef", "s", "K")), Ok("secret".into()));
        assert_eq!(of(key("secretKeyRef", "s", "L")), Err("secret s has no key L".into()));
        let from =
            variables(json!([]), json!([{ "prefix": "P_", "configMapRef": { "name": "m" } }]), &sources);
        assert_eq!(from.unwrap()["P_K"], "map");
        let absent = json!([{ "configMapRef": { "name": "none" } }]);
        assert_eq!(variables(json!([]), absent, &sources), Err("there is no configmap none".into()));
    }
}
