//! `midflight serve`: the control process, with the API and the controllers. Started by `up`.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use midflight_api::NODES_OF_RECORD;
use midflight_apiserver::{
    ApiServer, BindError, Config, Listening, OpenError,
    auth::{Identity, NodeRule, Reach},
    store,
};
use midflight_operator::{Admission, BootstrapError, Figures, Standing, Writer};
use tokio::{
    task::{JoinError, JoinHandle},
    time::{Instant, sleep},
};
use tracing::{info, warn};

use super::role::{self, Stage};
use crate::{
    credentials,
    failure::Failure,
    folder::{Folder, Marker, create_private_dir},
    listen::{self, loopback},
    nodes::Sockets,
    own_store,
    process::Role,
    registry::Registry,
    session::Session,
};

/// Where backups go unless somebody says otherwise, as every node sees it.
const BACKUPS: &str = "file:///backups";
/// How long a namespace may take to go that somebody deleted before this start. Whoever starts us waits longer.
const NAMESPACE_GOES_WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Serve the API of the embedded cluster and run its controllers
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen [default: on loopback, at the port of the last start, else at a free one]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Say on stdout when the API is ready, in one line of JSON
    #[arg(long)]
    announce: bool,
}

impl Serve {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let folder = session.folder()?;
        role::play(&folder, Role::Control, self.announce, async |stage| {
            serve(&folder, self.listen, stage).await
        })
        .await
    }
}

async fn serve(folder: &Folder, asked: Option<SocketAddr>, stage: &mut Stage) -> anyhow::Result<()> {
    let marker = folder.marker()?.context("the folder's marker has gone")?;
    let last = marker.listen.map(listen::usual);
    let mut config = Config::new(folder.root());
    if let Some(wanted) = asked.or(last) {
        config.names = listen::names(wanted).context("read the addresses of this machine")?;
    }
    config.node_rules = node_rules();
    let registry = Arc::new(Registry::at(folder.registry()));
    config.annexes = vec![Arc::clone(&registry) as _];
    config.nodes = Some(Arc::new(Sockets::below(folder.run())));
    let (figures, counted) = Figures::new();
    config.figures = Some(Arc::new(counted));
    own_store::bring_up_to_date(&folder.store(), own_store::MIGRATIONS)?;
    let server = ApiServer::open(config).await.map_err(explain_open)?;
    let listening = bind(&server, asked, last).await?;
    let address = listening.address();
    hand_out_credentials(folder, &server, &marker, address)?;
    folder.write_marker(&Marker { listen: Some(address), ..marker })?;
    let mut serving = tokio::spawn(listening.serve());
    info!(%address, "the API serves");

    let client = kube::Client::new(server.service(Identity::admin("system:midflight")), "default");
    let writer = Arc::new(Writer::new(client));
    let admission = Admission::open().await.context("prepare to judge changes of volumes")?;
    admission.register(&writer).await.context("have the API ask about changes of volumes")?;
    let mut judging = pin!(admission.serve(writer.client().clone()));
    let standing = tokio::select! {
        standing = prepare(&writer) => standing?,
        () = &mut judging => anyhow::bail!("admission has ended"),
    };
    midflight_operator::make_backup_target(&writer, BACKUPS).await.context("say where backups go")?;
    stage.ready()?;
    registry.publish_own_images();

    tokio::select! {
        () = stage.asked_to_end() => {}
        () = &mut judging => anyhow::bail!("admission has ended"),
        () = midflight_operator::run_counting(writer, &standing, figures) => anyhow::bail!("the controllers have ended"),
        ended = &mut serving => return Err(nobody_listens(ended)),
    }
    server.shutdown().await;
    serving.await.context("end the API's connections")
}

/// Prepares the cluster. A namespace that is being deleted is waited for while the controllers let go of what is in it.
async fn prepare(writer: &Arc<Writer>) -> anyhow::Result<Standing> {
    let deadline = Instant::now() + NAMESPACE_GOES_WITHIN;
    let mut emptying: Option<AbortOnDrop> = None;
    loop {
        match midflight_operator::bootstrap_with(writer).await {
            Ok(standing) => return Ok(standing),
            Err(error @ BootstrapError::NamespaceEnds { .. }) if Instant::now() > deadline => {
                return Err(Failure::error(
                    error.to_string(),
                    "start it again in a moment; what it waits for goes when whoever put the finalizer there lets go of it",
                ));
            }
            Err(BootstrapError::NamespaceEnds { standing, .. }) => {
                emptying.get_or_insert_with(|| {
                    info!("the namespace is being deleted; it is made anew when it is gone");
                    let writer = Arc::clone(writer);
                    AbortOnDrop(tokio::spawn(async move { midflight_operator::run(writer, &standing).await }))
                });
                sleep(LOOK_AGAIN).await;
            }
            Err(error) => return Err(anyhow::Error::new(error).context("install Midflight's own kinds")),
        }
    }
}

/// Ends a task that nobody needs any more.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Without the API nobody can be served: the process ends, and whoever watches it starts it anew.
fn nobody_listens(ended: Result<(), JoinError>) -> anyhow::Error {
    let what = "the API does not listen any more";
    ended.map_or_else(|error| anyhow::Error::new(error).context(what), |()| anyhow::anyhow!(what))
}

/// What the token of a node may do with Midflight's own kinds: it reads them, changes the records
/// of volumes that name the node, and says where its instance managers are.
fn node_rules() -> Vec<NodeRule> {
    const READ: &[&str] = &["get", "list", "watch"];
    let of_node = Reach::Naming(vec!["/spec/nodeID".to_owned()]);
    let named = Reach::Naming(NODES_OF_RECORD.iter().map(|&pointer| pointer.to_owned()).collect());
    vec![
        NodeRule::new("midflight.dev", &["volumerecords"], READ, Reach::All),
        NodeRule::new("midflight.dev", &["volumerecords"], &["update", "patch"], named),
        NodeRule::new("longhorn.io", &["instancemanagers"], READ, Reach::All),
        NodeRule::new("longhorn.io", &["instancemanagers/status"], &["patch"], of_node),
    ]
}

/// An address that was asked for is taken or the start fails; one that was
/// taken last time or just any is given up for another.
async fn bind(
    server: &ApiServer,
    asked: Option<SocketAddr>,
    last: Option<SocketAddr>,
) -> anyhow::Result<Listening> {
    if let Some(asked) = asked {
        return server.bind(asked).await.map_err(|error| explain_bind(error, asked));
    }
    if let Some(last) = last {
        match server.bind(last).await {
            Ok(listening) => return Ok(listening),
            Err(error) => warn!(%last, %error, "the last address is not to be had, taking another"),
        }
    }
    for port in candidate_ports(server) {
        if let Ok(listening) = server.bind(loopback(port)).await {
            return Ok(listening);
        }
    }
    server.bind(loopback(0)).await.context("find a free port on 127.0.0.1")
}

/// Ports below those that the kernel gives to outgoing connections: there, a
/// client that retries while we are down could end up holding our port.
fn candidate_ports(server: &ApiServer) -> impl Iterator<Item = u16> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    let spread = server.cluster().as_u128() % u128::from(COUNT);
    let spread = u16::try_from(spread).unwrap_or_default();
    (0..64).map(move |attempt| FIRST + (spread + attempt * 181) % COUNT)
}

/// A kubeconfig for the user, one for those who only look, and one for every node.
fn hand_out_credentials(
    folder: &Folder,
    server: &ApiServer,
    marker: &Marker,
    address: SocketAddr,
) -> anyhow::Result<()> {
    let reachable = listen::reachable(address);
    credentials::ensure(server, &folder.kubeconfig(), Identity::admin("admin"), reachable)?;
    credentials::ensure(server, &folder.viewer_kubeconfig(), Identity::viewer("viewer"), reachable)?;
    for node in 1..=marker.nodes {
        let kubeconfig = folder.node_kubeconfig(node);
        kubeconfig.parent().map_or(Ok(()), create_private_dir)?;
        let identity = Identity::node(&Role::Node(node).to_string());
        credentials::ensure(server, &kubeconfig, identity, reachable)?;
    }
    Ok(())
}

fn explain_open(error: OpenError) -> anyhow::Error {
    let advice = match &error {
        OpenError::Store(store::OpenError::NewerFormat { .. }) => {
            "use the newer midflight that wrote it, or another --dir; nothing was changed"
        }
        OpenError::Store(store::OpenError::Corrupt { .. }) => {
            "restore store.redb from a copy, or start anew in another --dir; nothing was changed"
        }
        OpenError::Store(store::OpenError::Missing { .. }) => {
            "put store.redb back from a copy, or start anew in another --dir; nothing was changed"
        }
        OpenError::Store(store::OpenError::Lost { .. }) => {
            "an older copy was put in its place; put the newer one back, nothing was changed"
        }
        OpenError::Store(store::OpenError::ForeignJournal { .. }) => {
            "it may be all that another store has of its newest writes; nothing was changed"
        }
        OpenError::Store(store::OpenError::Locked { .. }) => "stop the process that uses it",
        _ => return anyhow::Error::new(error).context("open the API's data"),
    };
    let why = match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    Failure::error(why, advice)
}

fn explain_bind(error: BindError, asked: SocketAddr) -> anyhow::Error {
    match &error {
        BindError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => Failure::error(
            format!("listen on {asked}: another process uses that port"),
            "stop that process, or choose another address with --listen (without it, a free port is taken)",
        ),
        _ => anyhow::Error::new(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_the_listener_is_an_error_however_it_comes() {
        let ended = tokio::spawn(async {}).await;
        let broken = tokio::spawn(async { panic!("a defect") }).await;
        assert_eq!(nobody_listens(ended).to_string(), "the API does not listen any more");
        let error = format!("{:#}", nobody_listens(broken));
        assert!(
            error.starts_with("the API does not listen any more: ") && error.contains("a defect"),
            "{error}"
        );
    }
}
