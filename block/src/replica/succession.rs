//! How one process of a replica follows another on the same folder, while its engines stay
//! connected and only wait.
//!
//! ```text
//! successor ── asks ──▶ FOLDER/successor.sock
//!            no request is taken any more; what is under way ends; the files are let go
//! lock, door, connections, promise ──▶ successor ── opens the copy, serves ── taken ──▶ the old process ends
//! ```
//!
//! Invariant: at any moment one process reads and writes the folder; what a connection has
//! sent is handled once and in order, by one or the other. Until the successor serves, the old
//! process goes on in its place if it ends.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use midflight_handover::{Hatch, Line};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    core::Known,
    disk::Folder,
    serve::{Opened, ReplicaArgs, ReplicaError, Serving},
};
use crate::{
    net::{
        address::{Address, Listener},
        link::Released,
        reactor::{Door, LinkId, Reactor},
    },
    wire::hello::{Features, VERSIONS},
};

/// Of what is said here. Another one is refused, and the old process goes on.
const FORMAT: u32 = 1;
const SOCKET: &str = "successor.sock";
/// Who connects asks at once.
const ASKS_WITHIN: Duration = Duration::from_secs(1);
/// What is under way, a sync above all, has so long to end.
const QUIET_WITHIN: Duration = Duration::from_secs(10);
/// A successor opens the copy in much less.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    format: u32,
    volume: String,
    features: Features,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Told {
    /// The lock and the listening socket come along; then the connections, one by one.
    Given {
        address: Address,
        known: Known,
        links: usize,
    },
    Refused(String),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GivenLink {
    link: u64,
    compact: bool,
    /// Bytes that arrived and were not understood yet. They follow, then what was answered and not sent.
    input: usize,
}

impl GivenLink {
    fn pack(link: u64, released: &Released) -> Result<Vec<u8>, serde_json::Error> {
        let head = GivenLink { link, compact: released.compact, input: released.input.len() };
        Ok([&serde_json::to_vec(&head)?[..], b"\n", &released.input, &released.output].concat())
    }

    fn unpack(state: &[u8], fd: OwnedFd) -> Result<(u64, Released), TakeOverError> {
        let end = state.iter().position(|byte| *byte == b'\n').ok_or(TakeOverError::Gone)?;
        let head: GivenLink = serde_json::from_slice(&state[..end])?;
        let (input, output) = state[end + 1..].split_at_checked(head.input).ok_or(TakeOverError::Gone)?;
        let (input, output) = (BytesMut::from(input), BytesMut::from(output));
        Ok((head.link, Released { fd, input, output, compact: head.compact }))
    }
}

/// Why a folder is not taken over from the process that has it.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    #[error("speak to the process that serves {}", folder.display())]
    Io { folder: PathBuf, source: io::Error },
    #[error("the process that serves the folder refuses: {0}")]
    Refused(String),
    #[error("the process that serves the folder has ended")]
    Gone,
    #[error("the process that serves the folder is not understood")]
    Json(#[from] serde_json::Error),
}

/// A path below a folder that is short enough for a socket, however deep the folder is.
fn below(folder: &Path) -> io::Result<(File, PathBuf)> {
    let open = File::open(folder)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd());
    Ok((open, path.into()))
}

fn read<T: DeserializeOwned>(line: &Line) -> Result<(T, Vec<OwnedFd>), TakeOverError> {
    let failed = |source| TakeOverError::Io { folder: PathBuf::new(), source };
    let (state, descriptors) = line.hear().map_err(failed)?.ok_or(TakeOverError::Gone)?;
    Ok((serde_json::from_slice(&state)?, descriptors))
}

/// Where the successor of this process asks for the folder.
pub(super) struct Succession {
    /// None where the folder cannot hold a socket: nobody can follow this process, which serves all the same.
    hatch: Option<(Hatch, LinkId)>,
    /// Who has asked, and until when what is under way may take.
    asked: Option<(Line, Instant)>,
}

/// All that a successor gets.
struct Estate {
    folder: Folder,
    address: Address,
    known: Known,
    links: Vec<(u64, Released)>,
}

impl Succession {
    pub(super) fn open(folder: &Path, reactor: &mut Reactor) -> Succession {
        let opened = below(folder).and_then(|(_open, path)| {
            let hatch = Hatch::open(&path)?;
            let watch = reactor.watch(hatch.as_fd())?;
            Ok((hatch, watch))
        });
        if let Err(error) = &opened {
            tracing::warn!(folder = %folder.display(), %error, "no successor can ask for the folder");
        }
        Succession { hatch: opened.ok(), asked: None }
    }

    pub(super) fn is(&self, link: LinkId) -> bool {
        self.hatch.as_ref().is_some_and(|(_, watch)| *watch == link)
    }

    /// Whether a successor waits; meanwhile no request is taken from anyone.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.asked.as_ref().map(|(_, until)| *until)
    }

    /// A successor asks. Says whether it may have the folder.
    pub(super) fn on_asked(&mut self, volume: &str, reactor: &mut Reactor) {
        let Some((hatch, _)) = &self.hatch else { return };
        let heard = hatch.accept().and_then(|line| {
            line.wait_at_most(ASKS_WITHIN)?;
            Ok(line)
        });
        let line = match heard {
            Ok(line) => line,
            Err(error) => return tracing::warn!(%error, "a successor"),
        };
        let refusal = match read::<Asked>(&line) {
            Err(error) => Some(error.to_string()),
            Ok(_) if self.asked.is_some() => Some("another successor has asked already".into()),
            Ok((asked, _)) if asked.format != FORMAT => {
                Some(format!("it hands over by format {FORMAT}, the successor by {}", asked.format))
            }
            Ok((asked, _)) if asked.volume != volume => {
                Some(format!("it has a copy of {volume}, not of {}", asked.volume))
            }
            Ok((asked, _)) if uses(reactor, Features::COMPACT) && !asked.features.has(Features::COMPACT) => {
                Some("an engine sends compact frames, which the successor does not read".into())
            }
            Ok(_) => None,
        };
        match refusal {
            Some(why) => refuse(&line, why),
            None => {
                reactor.links().into_iter().for_each(|link| reactor.set_deaf(link, true));
                self.asked = Some((line, Instant::now() + QUIET_WITHIN));
            }
        }
    }

    /// Gives everything away once nothing is under way; `None` when a successor serves. One that has to
    /// wait for too long is told so, and this process goes on.
    pub(super) fn go_on(
        &mut self,
        replica: Serving,
        args: &ReplicaArgs,
        address: &Address,
        reactor: &mut Reactor,
    ) -> Result<Option<Serving>, ReplicaError> {
        let Some((line, until)) = self.asked.take() else { return Ok(Some(replica)) };
        if !replica.is_quiet() {
            if Instant::now() < until {
                self.asked = Some((line, until));
                return Ok(Some(replica));
            }
            refuse(&line, format!("what is under way did not end within {QUIET_WITHIN:?}"));
            return Ok(Some(wake(replica, reactor)?));
        }
        let (folder, known) = replica.let_go()?;
        let links = reactor.links().into_iter();
        let links = links.filter_map(|link| Some((link.bits(), reactor.release(link)?))).collect();
        let estate = Estate { folder, address: address.clone(), known, links };
        match give(&line, &estate, reactor) {
            Ok(()) => Ok(None),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the successor did not take over");
                let opened = Opened::in_folder(estate.folder, args)?;
                Ok(Some(resume(opened, args, estate.known, estate.links, reactor)?))
            }
        }
    }
}

fn uses(reactor: &mut Reactor, feature: Features) -> bool {
    feature == Features::COMPACT
        && reactor.links().into_iter().any(|link| reactor.link(link).is_some_and(|link| link.is_compact()))
}

fn refuse(line: &Line, why: String) {
    tracing::warn!(why, "a successor is refused");
    let told = serde_json::to_vec(&Told::Refused(why)).expect("plain fields");
    // One that does not listen any more needs no answer.
    let _ = line.say(&told, &[]);
}

/// Takes requests again.
fn wake(mut replica: Serving, reactor: &mut Reactor) -> Result<Serving, ReplicaError> {
    for link in reactor.links() {
        reactor.set_deaf(link, false);
        replica.on_arrived(link, reactor)?;
    }
    Ok(replica)
}

/// Returns when the successor serves.
fn give(line: &Line, estate: &Estate, reactor: &Reactor) -> Result<(), TakeOverError> {
    let Estate { folder, address, known, links } = estate;
    let failed = |source| TakeOverError::Io { folder: PathBuf::new(), source };
    let door = reactor.door(Door(0)).ok_or(TakeOverError::Gone)?;
    let told = Told::Given { address: address.clone(), known: known.clone(), links: links.len() };
    line.say(&serde_json::to_vec(&told)?, &[folder.lock(), door]).map_err(failed)?;
    for (link, released) in links {
        line.say(&GivenLink::pack(*link, released)?, &[released.fd.as_fd()]).map_err(failed)?;
    }
    line.wait_at_most(TAKEN_WITHIN).map_err(failed)?;
    // Without a word it has not begun to serve only if it is gone.
    match line.hear() {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(TakeOverError::Gone),
        Err(source) => {
            tracing::error!(%source, "the successor does not say whether it serves; it has the folder");
            Ok(())
        }
    }
}

fn resume(
    opened: Opened,
    args: &ReplicaArgs,
    known: Known,
    links: Vec<(u64, Released)>,
    reactor: &mut Reactor,
) -> Result<Serving, ReplicaError> {
    let mut here = BTreeMap::new();
    for (link, released) in links {
        here.insert(link, reactor.resume(released).map_err(ReplicaError::Wait)?);
    }
    let mut replica = Serving::resume(opened, args, known, &here, reactor);
    for link in here.into_values() {
        replica.on_arrived(link, reactor)?;
    }
    Ok(replica)
}

/// Asks the process that serves a folder for it, and goes on in its place.
pub(super) fn take_over(
    args: &ReplicaArgs,
    reactor: &mut Reactor,
) -> Result<(Serving, Address), ReplicaError> {
    let failed = |source| TakeOverError::Io { folder: args.folder.clone(), source };
    let (_open, path) = below(&args.folder).map_err(failed)?;
    let line = Line::connect(&path).map_err(failed)?;
    line.wait_at_most(QUIET_WITHIN + TAKEN_WITHIN).map_err(failed)?;
    let asked = Asked { format: FORMAT, volume: args.volume.clone(), features: VERSIONS.features };
    line.say(&serde_json::to_vec(&asked).map_err(TakeOverError::from)?, &[]).map_err(failed)?;
    let (told, descriptors) = read::<Told>(&line)?;
    let (address, known, count) = match told {
        Told::Given { address, known, links } => (address, known, links),
        Told::Refused(why) => return Err(TakeOverError::Refused(why).into()),
    };
    let [lock, door]: [OwnedFd; 2] = descriptors.try_into().map_err(|_| TakeOverError::Gone)?;
    let mut links = Vec::new();
    for _ in 0..count {
        let (state, descriptors) = line.hear().map_err(failed)?.ok_or(TakeOverError::Gone)?;
        let [fd]: [OwnedFd; 1] = descriptors.try_into().map_err(|_| TakeOverError::Gone)?;
        links.push(GivenLink::unpack(&state, fd)?);
    }
    let opened = Opened::in_folder(Folder::given(&args.folder, lock), args)?;
    let listener = Listener::given(door, &address);
    let listen = |source| ReplicaError::Listen { address: address.clone(), source };
    reactor.open_door(Door(0), listener).map_err(listen)?;
    let replica = resume(opened, args, known, links, reactor)?;
    line.say(b"taken", &[]).map_err(failed)?;
    tracing::info!(volume = args.volume, %address, connections = count, "replica taken over");
    Ok((replica, address))
}
