//! How one frontend process follows another.
//!
//! ```text
//! offered volumes ── all the time ──▶ keeper ──▶ successor of one that was killed
//! tables, clients ── at SIGTERM  ──▶ keeper ──▶ successor of one that ended on purpose
//! ```
//!
//! Block devices are like volumes: the kernel remembers what it asked.
//!
//! Invariant: a client is left with the keeper only together with all that it
//! asked; a frontend that was killed leaves no client, for nobody knows what it
//! had read from it.

use std::{
    collections::HashMap,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use midflight_handover::{Parcel, Stay};

use super::{
    control::Answer,
    core::{Input, Standing},
    devices::Exposed,
    exposure::Asker,
    keeping::Then,
    parked::{ParkedRequest, ParkedTable, ParkedVolume, pack, take, unpack},
    serve::Driver,
    table::Request,
};
use crate::{
    epoch::Epoch,
    extent::Extent,
    net::{
        address::{Address, Listener},
        reactor::LinkId,
    },
};

const VOLUME: &str = "volume/";
const TABLE: &str = "table/";
const CLIENT: &str = "client/";
const DEVICE: &str = "device/";

impl Driver {
    /// Leaves with the keeper what a successor of this process needs of a volume.
    pub(super) fn keep(&self, volume: &str) {
        if let Some(place) = self.volumes.get(volume) {
            self.keep_as(volume, place.core.standing(), None);
        }
    }

    /// The same, and what is to be done afterwards; says what that is if nobody keeps anything.
    fn keep_as(&self, volume: &str, standing: Standing, then: Option<Then>) -> Option<Then> {
        let (Some(keeping), Some(place)) = (&self.keeping, self.volumes.get(volume)) else { return then };
        let Some(door) = self.reactor.door(place.door) else { return then };
        let parked = ParkedVolume {
            volume: volume.to_owned(),
            size: place.core.size(),
            socket: place.socket.clone(),
            standing,
        };
        keeping.put(format!("{VOLUME}{volume}"), Stay::Lasting, (pack(&parked, &[]), &[door]), then);
        None
    }

    /// Tells whoever asked that a volume is offered, once a successor of this process would
    /// offer it too.
    pub(super) fn keep_and_tell(&mut self, now: Instant, volume: &str, asker: Asker, answer: Answer) {
        let Some(place) = self.volumes.get(volume) else { return };
        let then = Then::Tell(asker, answer);
        if let Some(then) = self.keep_as(volume, place.core.standing(), Some(then)) {
            self.go_on(now, then);
        }
    }

    /// Goes over to another engine, once a successor of this process would look for it there.
    pub(super) fn keep_and_switch(
        &mut self,
        now: Instant,
        volume: &str,
        to: Address,
        drain_within: Duration,
    ) {
        let Some(place) = self.volumes.get(volume) else { return };
        let standing = Standing { fallback: Some(to.clone()), ..place.core.standing() };
        let then = Then::Switch { volume: volume.to_owned(), to, drain_within };
        if let Some(then) = self.keep_as(volume, standing, Some(then)) {
            self.go_on(now, then);
        }
    }

    pub(super) fn go_on(&mut self, now: Instant, then: Then) {
        match then {
            Then::Tell((link, tag), answer) => self.tell(link, tag, &answer),
            Then::Switch { volume, to, drain_within } => {
                self.feed(now, &volume, Input::Switch { to, drain_within });
            }
        }
    }

    pub(super) fn forget(&mut self, volume: &str) {
        if let Some(keeping) = &self.keeping {
            keeping.remove(format!("{VOLUME}{volume}"));
        }
    }

    /// The kernel's side of a block device stays open whatever happens to this process.
    pub(super) fn keep_device(&mut self, now: Instant, link: LinkId, then: Option<Then>) {
        match (&self.keeping, self.devices.exposed(link)) {
            (Some(keeping), Some((exposed, session))) => {
                let key = format!("{DEVICE}{}", exposed.volume);
                keeping.put(key, Stay::Lasting, (pack(&exposed, &[]), &[session]), then);
            }
            (None, _) | (_, None) => then.into_iter().for_each(|then| self.go_on(now, then)),
        }
    }

    pub(super) fn forget_device(&mut self, volume: &str) {
        if let Some(keeping) = &self.keeping {
            keeping.remove(format!("{DEVICE}{volume}"));
        }
    }

    /// A keeper that was replaced is told everything anew.
    pub(super) fn look_for_keeper(&mut self, now: Instant) {
        let found =
            self.keeping.as_mut().is_some_and(|keeping| keeping.found_another(now, &mut self.reactor));
        if found {
            let names: Vec<String> = self.volumes.keys().cloned().collect();
            names.iter().for_each(|volume| self.keep(volume));
            let devices: Vec<LinkId> = names.iter().filter_map(|name| self.devices.of_volume(name)).collect();
            devices.into_iter().for_each(|link| self.keep_device(now, link, None));
            tracing::info!(volumes = names.len(), "a new keeper has everything");
        }
    }

    /// Ends this process's part: everything is with the keeper afterwards.
    pub(super) fn park(&mut self) {
        let names: Vec<String> = self.volumes.keys().cloned().collect();
        names.iter().for_each(|volume| self.keep(volume));
        let clients = self.clients.links();
        let Some(keeping) = self.keeping.take() else { return };
        for (volume, place) in &self.volumes {
            let requests: Vec<&Request> = place.core.requests().collect();
            let table = ParkedTable {
                volume: volume.clone(),
                epoch: place.core.standing().epoch,
                requests: requests.iter().map(|request| ParkedRequest::of(request)).collect(),
            };
            let payloads: Vec<&[u8]> = requests.iter().map(|request| &request.payload[..]).collect();
            keeping.put(format!("{TABLE}{volume}"), Stay::Once, (pack(&table, &payloads), &[]), None);
        }
        for link in &clients {
            if let Some((state, fd)) = self.clients.park(&mut self.reactor, *link) {
                keeping.put(format!("{CLIENT}{}", link.bits()), Stay::Once, (state, &[fd.as_fd()]), None);
            }
        }
        keeping.finish();
        tracing::info!(volumes = names.len(), clients = clients.len(), "parked with the keeper");
    }

    /// Goes on where a predecessor stood.
    pub(super) fn resume(&mut self, parcels: Vec<Parcel>) {
        let now = Instant::now();
        let of = |parcels: &mut Vec<Parcel>, prefix: &str| -> Vec<Parcel> {
            parcels.extract_if(.., |parcel| parcel.key.starts_with(prefix)).collect()
        };
        let mut parcels = parcels;
        let (volumes, tables, clients) =
            (of(&mut parcels, VOLUME), of(&mut parcels, TABLE), of(&mut parcels, CLIENT));
        let devices = of(&mut parcels, DEVICE);
        let tables: HashMap<String, (ParkedTable, bytes::Bytes)> = tables
            .into_iter()
            .filter_map(|parcel| readable(&parcel.key, unpack::<ParkedTable>(parcel.state)))
            .map(|(table, payloads)| (table.volume.clone(), (table, payloads)))
            .collect();
        for parcel in volumes {
            self.resume_volume(now, parcel, &tables);
        }
        let mut links = HashMap::new();
        for mut parcel in clients {
            let Some(fd) = parcel.descriptors.pop() else { continue };
            let resumed = self.clients.resume(&mut self.reactor, (parcel.state, fd), now);
            links.extend(readable(&parcel.key, resumed));
        }
        for (table, payloads) in tables.into_values() {
            self.resume_table(now, table, payloads, &links);
        }
        for link in links.into_values() {
            self.on_client(now, link);
        }
        for mut parcel in devices {
            let exposed = readable(&parcel.key, unpack::<Exposed>(parcel.state));
            if let (Some((exposed, _)), Some(session)) = (exposed, parcel.descriptors.pop()) {
                readable(&parcel.key, self.devices.resume(&mut self.reactor, exposed, session));
            }
        }
    }

    fn resume_volume(
        &mut self,
        now: Instant,
        mut parcel: Parcel,
        tables: &HashMap<String, (ParkedTable, bytes::Bytes)>,
    ) {
        let Some((mut parked, _)) = readable(&parcel.key, unpack::<ParkedVolume>(parcel.state)) else {
            return;
        };
        let Some(door) = parcel.descriptors.pop() else { return };
        // Only who has the table knows all that was asked in that epoch.
        parked.standing.epoch = tables.get(&parked.volume).map_or(Epoch::NONE, |(table, _)| table.epoch);
        let (volume, known) = (parked.volume.clone(), tables.contains_key(&parked.volume));
        match self.offer(now, parked, Listener::Unix(door.into())) {
            Ok(()) => tracing::info!(volume, known, "volume taken over"),
            Err(error) => tracing::warn!(volume, %error, "take a volume over"),
        }
    }

    fn resume_table(
        &mut self,
        now: Instant,
        table: ParkedTable,
        mut payloads: bytes::Bytes,
        links: &HashMap<u64, LinkId>,
    ) {
        for parked in table.requests {
            let payload = take(&mut payloads, parked.payload);
            let (Some(payload), Some(extent)) =
                (readable(&table.volume, payload), Extent::new(parked.offset, parked.length))
            else {
                return;
            };
            let client = links.get(&parked.client).copied().unwrap_or(LinkId::NOBODY);
            self.clients.owes(client, parked.op, extent);
            let request = Request {
                client,
                cookie: parked.cookie,
                op: parked.op,
                fua: parked.fua,
                extent,
                payload,
                check: parked.check,
                arrived: now,
            };
            self.feed(now, &table.volume, Input::Request(request));
        }
    }
}

/// What cannot be read is left out, with a word about it.
fn readable<T, E: std::error::Error + 'static>(key: &str, read: Result<T, E>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::warn!(key, error = &error as &dyn std::error::Error, "left behind, not taken over");
            None
        }
    }
}
