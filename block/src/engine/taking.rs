//! How an engine takes a volume over: who has promised, whose copy is fit, and what has to be made equal first.
//!
//! Invariant: it serves when every member in service has promised its epoch, and no two of them can differ
//! in anything but what the frontend asks again.

use super::{
    core::{Engine, Output, Phase},
    members::Service,
};
use crate::{
    blocks::Blocks,
    epoch::Epoch,
    wire::{Frame, members::Promised},
};

impl Engine {
    pub(super) fn on_promised(&mut self, at: usize, frame: &Frame, out: &mut Vec<Output>) {
        let Some(promised) = Promised::decode(&frame.payload) else { return self.on_lost(at, out) };
        if let Some(damage) = &promised.damage {
            tracing::warn!(member = at, damage, "a member is damaged");
            self.damaged.insert(at, (damage.clone(), false));
        }
        let member = self.members.get(at);
        member.version = promised.version;
        if member.service == Service::In {
            self.unflushed.inherit(&promised.regions());
        } else if member.service == Service::Out && self.phase == Phase::Serving {
            member.service = Service::Returning;
        }
        member.promise = Some(promised);
        self.advance(out);
        self.change_members(out);
    }

    /// Everyone in service has promised. A copy whose machine lost power lacks what
    /// it had not synced: if others do not, it is rebuilt from them. If the
    /// frontend does not know what its predecessor had under way, the copies may
    /// differ there and are made equal first.
    pub(super) fn on_all_promised(&mut self, tag: u64, out: &mut Vec<Output>) {
        if self.members.any(Service::Leaving).is_some() {
            return self.change_members(out);
        }
        let promises = || {
            let all = self.members.iter().filter(|(_, member)| member.service == Service::In);
            all.filter_map(|(at, member)| member.promise.as_ref().map(|promise| (at, promise)))
        };
        let stale: Vec<usize> = promises()
            .filter(|(_, promise)| promise.lost_power && !promise.regions.is_empty())
            .map(|(at, _)| at)
            .collect();
        if !stale.is_empty() && stale.len() < promises().count() {
            stale.into_iter().for_each(|at| self.put_out(at, out));
            return;
        }
        // Some were in service before and one never was: its folder is new.
        let versions = || promises().map(|(_, promise)| promise.version);
        let unfit: Vec<usize> = promises()
            .filter(|(_, promise)| {
                promise.damaged || promise.version == 0 && versions().any(|other| other > 0)
            })
            .map(|(at, _)| at)
            .collect();
        if !unfit.is_empty() && unfit.len() < promises().count() {
            unfit.into_iter().for_each(|at| self.put_out(at, out));
            return;
        }
        if !self.align(out) {
            return;
        }
        let promises = || {
            let all = self.members.iter().filter(|(_, member)| member.service == Service::In);
            all.filter_map(|(at, member)| member.promise.as_ref().map(|promise| (at, promise)))
        };
        let last_write = promises().map(|(_, promise)| promise.last_write).max().unwrap_or(Epoch::NONE);
        let mut regions = Blocks::default();
        promises().for_each(|(_, promise)| regions.extend(&promise.regions()));
        let known = stale.is_empty() && self.frontend_epoch >= last_write;
        if known || regions.is_empty() || promises().count() == 1 {
            return self.serve(tag, out);
        }
        // One thing is copied at a time.
        if let Some(joining) = self.members.any(Service::Joining) {
            return self.on_lost(joining, out);
        }
        self.phase = Phase::Converging { tag };
        self.converge(&regions, out);
    }

    /// Others have what this one lacks.
    pub(super) fn put_out(&mut self, at: usize, out: &mut Vec<Output>) {
        self.members.get(at).unfit = true;
        self.on_lost(at, out);
    }

    /// Serves from now on; what earlier engines left unsynced is synced when there is time.
    pub(super) fn serve(&mut self, tag: u64, out: &mut Vec<Output>) {
        self.reach(Phase::Serving, tag, out);
        self.part_from_absent(out);
        self.replayed = false;
        self.tell_frontend(out);
        self.tell_standing(out);
        self.unsettled = true;
        self.copy_on(out);
    }
}
