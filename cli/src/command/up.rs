//! `midflight up`: brings the cluster of a folder up, and watches it.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use futures::future::try_join_all;
use midflight_agent::image::Layout;
use serde::Serialize;
use tokio::time::sleep;

use super::status;
use crate::{
    cluster::{self, Interrupts, Starter},
    failure::Failure,
    folder::{Folder, Marker},
    listen,
    output::{Answer, Paint, quoted},
    process::{Alive, Record, Recorded, Role},
    registry,
    session::Session,
    target,
};

/// How long the API may take to call the nodes ready whose agents run.
const NODES_READY_WITHIN: Duration = Duration::from_secs(30);
/// Who waits for longer than this is told for what.
const TOLD_AFTER: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Start the embedded cluster: a Kubernetes API and its nodes, as plain processes
///
/// Returns, or says so, when the API serves, knows its own kinds and calls every node ready; a node that is not ready after half a
/// minute is named. In the foreground it then watches: what dies is
/// started again, Ctrl-C stops everything. A closed terminal ends only the watching. If the control plane has died,
/// `up` starts it again and takes the living nodes up.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Number of nodes [default: as many as the folder has, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=253))]
    nodes: Option<u8>,
    /// Where the API listens [default: on loopback, at the port of the last start, else at a free one]
    ///
    /// An address beyond loopback holds for this start only; the next one must be told again.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Return when ready and leave everything running
    #[arg(long)]
    detach: bool,
}

impl Up {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let folder = session.folder()?;
        let marker = folder.create_or_open()?;
        let _place = take_place(&folder)?;
        let nodes = self.wanted_nodes(&marker)?;
        refuse_if_all_runs(&folder, &marker, nodes, self.listen)?;
        if nodes != marker.nodes {
            folder.write_marker(&Marker { nodes, ..marker })?;
        }

        let kept = registry::of_another_build(&Layout::at(folder.registry()));
        let kept = kept.unwrap_or_else(|error| {
            session.say(format_args!("cannot tell of which build the images of this folder are: {error:#}"));
            Vec::new()
        });
        let starter = Starter::new(session, folder, self.listen)?;
        let run = starter.folder.run();
        let before = Role::alive(&run)?;
        let brought_up = tokio::select! {
            brought_up = bring_up(session, &starter, nodes, self.listen) => brought_up,
            () = interrupts.next() => Err(anyhow::anyhow!("interrupted")),
        };
        let (processes, not_ready) = match brought_up {
            Ok(brought_up) => brought_up,
            Err(error) => {
                cluster::stop(&run, &before).await?;
                return Err(error);
            }
        };
        let started = Started::look(&starter.folder, began.elapsed(), not_ready)?;
        let other_build = kept.iter().map(ToString::to_string).collect();
        session.answer(&Started { other_build, ..started })?;
        if self.detach {
            return Ok(());
        }
        session.say("watching; Ctrl-C stops everything");
        tokio::select! {
            () = cluster::watch(session, &starter, processes) => {}
            () = interrupts.next() => {}
        }
        session.say("stopping; once more kills");
        tokio::select! {
            stopped = cluster::stop(&run, &[]) => stopped.map(drop),
            () = interrupts.next() => cluster::kill(&run),
        }
    }

    fn wanted_nodes(&self, marker: &Marker) -> anyhow::Result<u8> {
        match self.nodes {
            Some(nodes) if nodes < marker.nodes => Err(Failure::usage(
                format!("the cluster in this folder has {} nodes already", marker.nodes),
                "give at least that number, or start anew in another --dir",
            )),
            Some(nodes) => Ok(nodes),
            None => Ok(marker.nodes.max(1)),
        }
    }
}

fn take_place(folder: &Folder) -> anyhow::Result<Recorded> {
    let run = folder.run();
    let place = Recorded::take(&run, Role::Up)?;
    place.ok_or_else(|| {
        let who = match Record::read(&run, &Role::Up) {
            Some(record) => format!(" (pid {})", record.identity.pid),
            None => String::new(),
        };
        Failure::usage(
            format!("another `midflight up` or `down`{who} works on {}", folder.root().display()),
            "`midflight status` shows what runs; `midflight down` stops it",
        )
    })
}

fn refuse_if_all_runs(
    folder: &Folder,
    marker: &Marker,
    nodes: u8,
    asked: Option<SocketAddr>,
) -> anyhow::Result<()> {
    let run = folder.run();
    let Some((record, _)) = Record::alive(&run, &Role::Control)? else { return Ok(()) };
    if record.ready {
        refuse_other_address(asked, marker)?;
    }
    if nodes > marker.nodes {
        return Err(Failure::usage(
            format!("the cluster runs with {} nodes; more are added when it starts", marker.nodes),
            format!("midflight down, then midflight up --nodes {nodes}"),
        ));
    }
    for role in std::iter::once(Role::Control).chain((1..=nodes).map(Role::Node)) {
        let found = Record::alive(&run, &role)?;
        if !found.is_some_and(|(record, _)| record.ready) {
            return Ok(());
        }
    }
    Err(Failure::usage(
        format!("it is already up in {} (control is pid {})", folder.root().display(), record.identity.pid),
        "use it, or stop it with `midflight down`; another cluster needs another --dir",
    ))
}

/// An API that runs stays where it listens.
fn refuse_other_address(asked: Option<SocketAddr>, marker: &Marker) -> anyhow::Result<()> {
    let (Some(asked), Some(listening)) = (asked, marker.listen) else { return Ok(()) };
    let any_port = asked.port() == 0 && asked.ip() == listening.ip();
    if asked == listening || any_port {
        return Ok(());
    }
    Err(Failure::usage(
        format!("the API runs and listens on {listening}; it cannot move to {asked} while it does"),
        format!("leave --listen out to keep it there, or midflight down, then midflight up --listen {asked}"),
    ))
}

/// Takes up what runs and starts what does not; tells which nodes are not ready nevertheless.
async fn bring_up(
    session: &Session,
    starter: &Starter,
    nodes: u8,
    asked: Option<SocketAddr>,
) -> anyhow::Result<(Vec<(Role, Alive)>, Vec<String>)> {
    let control = starter.take_or_start(Role::Control).await?;
    // One that an `up` before this had begun to start may listen elsewhere.
    let marker = starter.folder.marker()?.context("the folder's marker has gone")?;
    refuse_other_address(asked, &marker)?;
    let agents = try_join_all((1..=nodes).map(|node| starter.take_or_start(Role::Node(node)))).await?;
    let not_ready = await_nodes(session, &starter.folder, nodes).await?;
    Ok((std::iter::once(control).chain(agents).collect(), not_ready))
}

/// Waits until the API calls every node ready; tells those of which it does not, and why, when patience is over.
async fn await_nodes(session: &Session, folder: &Folder, nodes: u8) -> anyhow::Result<Vec<String>> {
    let wanted: Vec<String> = (1..=nodes).map(|node| Role::Node(node).to_string()).collect();
    let client = target::client_of(folder).await?;
    let deadline = Instant::now() + NODES_READY_WITHIN;
    let mut is_told = false;
    loop {
        let not_ready = status::not_ready(&client, &wanted).await?;
        if not_ready.is_empty() || Instant::now() > deadline {
            return Ok(not_ready);
        }
        if !is_told && deadline - Instant::now() < NODES_READY_WITHIN - TOLD_AFTER {
            session.say(format_args!("waiting for nodes: {}", not_ready.join("; ")));
            is_told = true;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// What `up` answers when the cluster is ready.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    version: &'static str,
    ready_in_ms: u128,
    api: String,
    /// Where other machines find it too; absent while it listens on loopback only.
    exposed: Option<SocketAddr>,
    folder: String,
    kubeconfig: String,
    nodes: Vec<String>,
    /// Nodes that the API does not call ready, and why.
    not_ready: Vec<String>,
    /// Images by whose names nodes have another build than this one, and keep it.
    other_build: Vec<String>,
}

impl Started {
    fn look(folder: &Folder, took: Duration, not_ready: Vec<String>) -> anyhow::Result<Started> {
        let marker = folder.marker()?.context("the folder's marker has gone")?;
        let listening = marker.listen.context("the folder's marker names no address")?;
        Ok(Started {
            version: env!("CARGO_PKG_VERSION"),
            ready_in_ms: took.as_millis(),
            api: format!("https://{}", listen::reachable(listening)),
            exposed: Some(listening).filter(|address| !address.ip().is_loopback()),
            folder: folder.root().display().to_string(),
            kubeconfig: folder.kubeconfig().display().to_string(),
            nodes: (1..=marker.nodes).map(|node| Role::Node(node).to_string()).collect(),
            not_ready,
            other_build: Vec::new(),
        })
    }
}

impl Answer for Started {
    fn to_table(&self, paint: Paint) -> String {
        let title = format!("midflight {} is up after {} ms", self.version, self.ready_in_ms);
        let exposed = self.exposed.map(|address| {
            format!(
                "  exposed  on {address}, for other machines too; the next start is not, unless told to\n"
            )
        });
        let not_ready: String = self
            .not_ready
            .iter()
            .map(|node| format!("           {} {node}\n", paint.bad("not ready:")))
            .collect();
        let other_build = match self.other_build.is_empty() {
            true => String::new(),
            false => format!(
                "  images   {} {} of another build than this one, and nodes keep that; to bring this one to them:\n           \
                 midflight image pack --tag engine:NAME --tag instance-manager:NAME, then\n           \
                 midflight upgrade engines --to engine:NAME and midflight upgrade nodes --to instance-manager:NAME\n",
                self.other_build.join(", "),
                if self.other_build.len() == 1 { "is" } else { "are" },
            ),
        };
        format!(
            "{}\n  API      {}\n{}  nodes    {}\n{not_ready}{other_build}  folder   {}\n  kubectl  export KUBECONFIG={}\n",
            if self.not_ready.is_empty() { paint.good(&title) } else { paint.bold(&title) },
            self.api,
            exposed.unwrap_or_default(),
            self.nodes.join(" "),
            self.folder,
            quoted(&self.kubeconfig)
        )
    }
}
