//! An API server of a test's own.

use kube::Client;
use midflight_apiserver::auth::Identity;
use midflight_apiserver::{ApiServer, Config};
use tempfile::TempDir;

/// An API server in this process, its data gone when dropped.
pub(crate) struct Cluster {
    server: ApiServer,
    pub(crate) client: Client,
    _folder: TempDir,
}

impl Cluster {
    pub(crate) async fn open() -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let server = ApiServer::open(Config::new(folder.path())).await.unwrap();
        let client = Client::new(server.service(Identity::admin("midflight")), "default");
        Cluster { server, client, _folder: folder }
    }

    /// A client of somebody else.
    pub(crate) fn user(&self, name: &str) -> Client {
        Client::new(self.server.service(Identity::admin(name)), "default")
    }

    pub(crate) async fn close(self) {
        self.server.shutdown().await;
    }
}
