//! The kubeconfigs of a folder: readable by their owner, good after every restart.
//!
//! The one invariant: a kubeconfig that is there holds a token that is good;
//! the token is kept for as long as it is.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use midflight_apiserver::{ApiServer, auth::Identity};
use serde_json::{Value, json};

use crate::folder::write_atomically;

/// Makes sure that the file lets the identity in at the address.
pub(crate) fn ensure(
    server: &ApiServer,
    path: &Path,
    identity: Identity,
    address: SocketAddr,
) -> anyhow::Result<()> {
    let user = identity.user().to_owned();
    let token = match token_in(path).filter(|token| server.identify(token).as_ref() == Some(&identity)) {
        Some(token) => token,
        None => {
            let making = || format!("make a token for {user}");
            // One that was made but never written down, because we were killed in between, is of no use to anyone.
            server.revoke_tokens(&user).with_context(making)?;
            server.issue_token(identity).with_context(making)?
        }
    };
    let text = serde_saphyr::to_string(&kubeconfig(&user, &token, server.ca_pem(), address));
    let text = text.context("encode a kubeconfig")?;
    if fs::read_to_string(path).is_ok_and(|current| current == text) {
        return Ok(());
    }
    write_atomically(path, text.as_bytes(), 0o600)
}

fn kubeconfig(user: &str, token: &str, ca_pem: &str, address: SocketAddr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "midflight",
        "clusters": [{
            "name": "midflight",
            "cluster": {
                "server": format!("https://{address}"),
                "certificate-authority-data": BASE64_STANDARD.encode(ca_pem),
            },
        }],
        "contexts": [{ "name": "midflight", "context": { "cluster": "midflight", "user": user } }],
        "users": [{ "name": user, "user": { "token": token } }],
    })
}

fn token_in(path: &Path) -> Option<String> {
    let kubeconfig: Value = serde_saphyr::from_str(&fs::read_to_string(path).ok()?).ok()?;
    Some(kubeconfig["users"][0]["user"]["token"].as_str()?.to_owned())
}
