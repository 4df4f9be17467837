//! `pods/log`: what a container said, asked of the node that runs it.
//!
//! The one invariant: a node is asked only about a pod that is bound to it, by one who may read it.

use std::fmt::Debug;

use futures::future::BoxFuture;
use http::Response;
use serde_json::Value;

use super::body::Body;
use super::call::Call;
use crate::error::{ApiError, Reason};
use crate::lifecycle::text;

/// Reaches what runs on nodes.
pub trait Nodes: Debug + Send + Sync {
    /// Asks the agent of a node; the path and query are its own. An error says why it cannot be reached.
    fn ask<'a>(&'a self, node: &'a str, path: &'a str) -> BoxFuture<'a, Result<Response<Body>, String>>;
}

/// What of the query is the node's to understand.
const OPTIONS: [&str; 7] =
    ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes"];

pub(crate) async fn log(call: &Call) -> Result<Response<Body>, ApiError> {
    let stored = call.stored()?;
    let pod = call.served.read(&stored).await?;
    call.check(&pod)?;
    let refuse = |why: String| ApiError::new(Reason::BadRequest, why);
    let container = container(&pod, call.name(), call.query.get("container")).map_err(refuse)?;
    let node = text(&pod, "/spec/nodeName");
    if node.is_empty() {
        return Err(refuse(format!("pod {} does not have a host assigned", call.name())));
    }
    let path = format!("/logs/{}/{container}?{}", text(&pod, "/metadata/uid"), options(call));
    let unreachable = |why: String| ApiError::new(Reason::InternalError, format!("ask node {node}: {why}"));
    let Some(nodes) = &call.server.nodes else {
        return Err(unreachable("this server does not reach nodes".to_owned()));
    };
    nodes.ask(node, &path).await.map_err(unreachable)
}

fn options(call: &Call) -> String {
    let given = OPTIONS.iter().filter_map(|name| Some((name, call.query.given(name)?)));
    form_urlencoded::Serializer::new(String::new()).extend_pairs(given).finish()
}

/// The container that is meant: the one that is named, or the only one.
fn container(pod: &Value, name: &str, wanted: Option<&str>) -> Result<String, String> {
    let names = |list: &str| -> Vec<String> {
        let all = pod["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter_map(|one| Some(one["name"].as_str()?.to_owned())).collect()
    };
    let (own, init) = (names("containers"), names("initContainers"));
    match wanted {
        Some(wanted) if own.iter().chain(&init).any(|one| one == wanted) => Ok(wanted.to_owned()),
        Some(wanted) => Err(format!("container {wanted} is not valid for pod {name}")),
        None => match &own[..] {
            [only] => Ok(only.clone()),
            several => Err(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                several.join(" ")
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_container_is_the_one_that_is_named_or_the_only_one() {
        let pod = |names: &[&str]| {
            let all: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
            json!({ "spec": { "containers": all, "initContainers": [{ "name": "i" }] } })
        };
        #[rustfmt::skip]
        let cases = [
            (pod(&["a"]),      None,      Ok("a")),
            (pod(&["a"]),      Some("a"), Ok("a")),
            (pod(&["a", "b"]), Some("b"), Ok("b")),
            (pod(&["a", "b"]), Some("i"), Ok("i")),
            (pod(&["a", "b"]), None,      Err("a container name must be specified for pod p, choose one of: [a b]")),
            (pod(&["a"]),      Some("x"), Err("container x is not valid for pod p")),
        ];
        for (pod, wanted, expected) in cases {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(container(&pod, "p", wanted), expected);
        }
    }
}
