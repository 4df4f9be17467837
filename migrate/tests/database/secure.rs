//! Passwords and TLS, with real servers that insist on them.

use std::path::{Path, PathBuf};

use midflight_migrate::store::{self, Layout, Options, StoreError, Url};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::json;

use crate::foreign;
use crate::world::{Kind, Open, World, new, old};

/// A certificate authority, and a server and a client that it vouches for, as files.
struct Papers {
    folder: tempfile::TempDir,
}

impl Papers {
    fn issue() -> Papers {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "authority of the test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.path().join("ca.pem"), ca.pem()).unwrap();
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let certificate = params.signed_by(&key, &ca).unwrap();
            std::fs::write(folder.path().join(format!("{name}.pem")), certificate.pem()).unwrap();
            std::fs::write(folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Papers { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn options(&self) -> Options {
        Options {
            ca: Some(self.path("ca.pem")),
            identity: Some((self.path("client.pem"), self.path("client.key"))),
            ..Options::default()
        }
    }
}

async fn refused(url: &str, options: &Options) -> String {
    let url: Url = url.parse().unwrap();
    let error = match store::open(&url, Layout::Dragonflow, options).await {
        Ok(store) => store.facts().await.unwrap_err(),
        Err(error) => error,
    };
    let mut text = format!("{error} {error:?}");
    if let StoreError::Lost { source, .. } = &error {
        text += &source.to_string();
    }
    text
}

async fn works(world: &World, url: &str, options: &Options) {
    let open = Open::lock(world.open_at(&url.parse().unwrap(), options).await).await;
    open.apply(&old(world)).await.unwrap();
    open.session().finalize().await.unwrap();
    open.apply(&new(world)).await.unwrap();
    open.session().rollback().await.unwrap();
    assert_eq!(open.rows().await, old(world));
    open.store.unlock(&open.fence).await.unwrap();
}

#[tokio::test]
async fn redis_with_a_password() {
    let Some(world) = World::with(Kind::Redis, Layout::Dragonflow, &["--requirepass", "s3cret"]) else {
        return;
    };
    let port = world.port();
    works(&world, &format!("redis://:s3cret@127.0.0.1:{port}"), &Options::default()).await;
    let text = refused(&format!("redis://:wr0ng@127.0.0.1:{port}"), &Options::default()).await;
    assert!(text.contains("authentication failed") && !text.contains("wr0ng"), "{text}");
    let by_option = Options { password: Some("s3cret".to_owned().into()), ..Options::default() };
    works(&world, &format!("redis://127.0.0.1:{port}"), &by_option).await;
}

#[tokio::test]
async fn etcd_with_a_password() {
    let Some(world) = World::new(Kind::Etcd, Layout::Dragonflow) else { return };
    let port = world.port();
    drop(world.open().await);
    foreign::post(port, "/v3/auth/user/add", &json!({ "name": "root", "password": "s3cret" }));
    foreign::post(port, "/v3/auth/role/add", &json!({ "name": "root" }));
    foreign::post(port, "/v3/auth/user/grant", &json!({ "user": "root", "role": "root" }));
    foreign::post(port, "/v3/auth/enable", &json!({}));
    works(&world, &format!("etcd://root:s3cret@127.0.0.1:{port}"), &Options::default()).await;
    let text = refused(&format!("etcd://root:wr0ng@127.0.0.1:{port}"), &Options::default()).await;
    assert!(text.contains("authentication failed") && !text.contains("wr0ng"), "{text}");
}

#[tokio::test]
async fn redis_over_tls_with_a_client_certificate() {
    let papers = Papers::issue();
    let (certificate, key, ca) =
        (papers.text("server.pem"), papers.text("server.key"), papers.text("ca.pem"));
    #[rustfmt::skip]
    let extra = [
        "--port", "0", "--tls-port", "PORT", "--tls-auth-clients", "yes",
        "--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca,
    ];
    let Some(world) = World::with(Kind::Redis, Layout::Generation, &extra) else { return };
    insists_on_papers(&world, &format!("rediss://127.0.0.1:{}", world.port()), &papers).await;
}

#[tokio::test]
async fn etcd_over_tls_with_a_client_certificate() {
    let papers = Papers::issue();
    let (certificate, key, ca) =
        (papers.text("server.pem"), papers.text("server.key"), papers.text("ca.pem"));
    #[rustfmt::skip]
    let extra = [
        "--listen-client-urls", "https://127.0.0.1:PORT", "--advertise-client-urls", "https://127.0.0.1:PORT",
        "--client-cert-auth", "--cert-file", &certificate, "--key-file", &key, "--trusted-ca-file", &ca,
    ];
    let Some(world) = World::with(Kind::Etcd, Layout::Generation, &extra) else { return };
    insists_on_papers(&world, &format!("etcds://127.0.0.1:{}", world.port()), &papers).await;
}

async fn insists_on_papers(world: &World, url: &str, papers: &Papers) {
    works(world, url, &papers.options()).await;
    let stranger = Options { identity: None, ..papers.options() };
    let text = refused(url, &stranger).await;
    assert!(text.contains("give --cert and --key"), "{text}");
    let distrustful = Options { ca: None, ..papers.options() };
    let text = refused(url, &distrustful).await;
    assert!(text.contains("with --ca"), "{text}");
    let nowhere = Options { ca: Some(Path::new("/nowhere/ca.pem").to_owned()), ..papers.options() };
    assert!(refused(url, &nowhere).await.contains("/nowhere/ca.pem"));
}
