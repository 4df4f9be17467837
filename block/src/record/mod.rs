//! The record of a volume: the one authority on who may write to it and which
//! copies are in service.
//!
//! Where it is kept is a [`RecordStore`]'s affair: a file (`file`) without a cluster, in one
//! an object of the API (`api`); `place` tells which. `scribe` changes it for an engine, beside its loop.
//!
//! Invariant: term and member version only grow; the last copy in service never
//! leaves, and a copy that was out is rebuilt before it is in service again.

pub mod api;
pub mod command;
pub mod file;
pub mod place;
pub mod scribe;

use serde::{Deserialize, Serialize};

use crate::engine::members::{MOST, Mode};

/// What the record says, in the words of the API's kind VolumeRecord.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Rises each time another engine, or the same one after a loss, is to have the volume.
    pub term: u64,
    /// Rises with every change of `members`.
    pub member_version: u64,
    pub members: Vec<Member>,
    /// The attachment whose frontend may ask anything of the engine; none while anyone may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<Attachment>,
    /// Whether the frontend is on its way to the engine of this term. Only a cluster's coordinator says so: it is not in a
    /// file.
    #[serde(skip)]
    pub switching: bool,
}

/// What an engine knows of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    pub term: u64,
    pub version: u64,
    pub attachment: Option<Attachment>,
}

/// What an engine finds that looks at the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    AsKnown,
    /// Another engine is to have the volume, and the frontend is told to go there. Until it does, clients have nobody
    /// else; and when it has, the replicas' promises end the one before.
    Succession,
    /// Another engine has the volume.
    Outbid {
        term: u64,
    },
    /// The members are others: a change that a dead engine had sent has arrived late.
    Stale,
}

/// Names the time between an attach and the next: one node, one frontend at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attachment(u64);

impl Attachment {
    /// One that no volume ever had.
    pub fn fresh() -> Attachment {
        Attachment(crate::role::process_name())
    }

    pub const fn from_bits(bits: u64) -> Attachment {
        Attachment(bits)
    }

    pub const fn bits(self) -> u64 {
        self.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub replica: String,
    pub mode: Mode,
}

/// What an engine wants the record to say of one copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub replica: String,
    pub mode: Mode,
    /// The member version after the change; the record must have the one before.
    pub version: u64,
}

/// What becomes of a wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The record is to be replaced by this one.
    Apply(Record),
    /// It says so already: an earlier attempt went through.
    Done,
    /// Another engine has a higher term.
    Outbid { term: u64 },
    /// Someone changed the members in this term, or the change is not allowed:
    /// whoever wishes it does not know the record.
    Stale,
}

impl Record {
    /// A new volume: everyone in service, nobody has it yet. A copy that was never in
    /// service knows member version 0, which no record has.
    pub fn new(replicas: impl IntoIterator<Item = String>) -> Record {
        let member = |replica| Member { replica, mode: Mode::InService };
        Record {
            term: 0,
            member_version: 1,
            members: replicas.into_iter().map(member).collect(),
            attachment: None,
            switching: false,
        }
    }

    /// What it means to the engine that knew the record like that.
    pub fn found_by(&self, known: Known) -> Found {
        let same_frontend = self.attachment == known.attachment;
        if self.term > known.term && self.switching && same_frontend {
            Found::Succession
        } else if self.term > known.term {
            Found::Outbid { term: self.term }
        } else if self.member_version != known.version {
            Found::Stale
        } else {
            Found::AsKnown
        }
    }

    /// The record in which the next engine has the volume.
    pub fn next_term(&self) -> Record {
        Record { term: self.term + 1, ..self.clone() }
    }

    /// Names a copy in the folders of the others: 64 bits of its name.
    pub fn key(replica: &str) -> u64 {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        replica.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
    }

    pub fn in_service(&self) -> usize {
        self.members.iter().filter(|member| member.mode == Mode::InService).count()
    }

    fn with_members(&self, members: Vec<Member>) -> Record {
        Record { member_version: self.member_version + 1, members, ..self.clone() }
    }

    fn is_last_in_service(&self, replica: &str) -> bool {
        let in_service = |member: &Member| member.mode == Mode::InService;
        self.in_service() == 1
            && self.members.iter().any(|member| member.replica == replica && in_service(member))
    }

    /// The record with another copy, which has to be rebuilt first; `None` if it has that one.
    pub fn with_member(&self, replica: &str) -> Result<Option<Record>, &'static str> {
        if self.members.iter().any(|member| member.replica == replica) {
            return Ok(None);
        }
        if self.members.len() >= MOST {
            return Err("the volume has as many replicas as there can be");
        }
        let mut members = self.members.clone();
        members.push(Member { replica: replica.to_owned(), mode: Mode::Out });
        Ok(Some(self.with_members(members)))
    }

    /// The record without a copy; `None` if it has none of that name.
    pub fn without_member(&self, replica: &str) -> Result<Option<Record>, &'static str> {
        if self.is_last_in_service(replica) {
            return Err("the last replica in service stays");
        }
        let members: Vec<Member> =
            self.members.iter().filter(|member| member.replica != replica).cloned().collect();
        Ok((members.len() < self.members.len()).then(|| self.with_members(members)))
    }

    /// The record in which a copy has to be rebuilt; `None` if that is so already.
    pub fn with_member_out(&self, replica: &str) -> Result<Option<Record>, &'static str> {
        if self.is_last_in_service(replica) {
            return Err("the last replica in service stays");
        }
        let mut members = self.members.clone();
        match members.iter_mut().find(|member| member.replica == replica) {
            None => Err("the record has no such replica"),
            Some(Member { mode: Mode::Out | Mode::Rebuilding, .. }) => Ok(None),
            Some(member) => {
                member.mode = Mode::Out;
                Ok(Some(self.with_members(members)))
            }
        }
    }

    /// Judges the wish of an engine that has the volume in `term`.
    pub fn judge(&self, term: u64, wish: &Wish) -> Verdict {
        if self.term > term {
            return Verdict::Outbid { term: self.term };
        }
        let Some(at) = self.members.iter().position(|member| member.replica == wish.replica) else {
            return Verdict::Stale;
        };
        let now = self.members[at].mode;
        if self.term < term {
            return Verdict::Stale;
        }
        if self.member_version == wish.version && now == wish.mode {
            return Verdict::Done;
        }
        let last = now == Mode::InService && self.in_service() == 1;
        let allowed = match (now, wish.mode) {
            (Mode::InService, Mode::Rebuilding | Mode::Out) => !last,
            (Mode::Out, Mode::InService) => false,
            (Mode::Rebuilding | Mode::Out, Mode::Rebuilding | Mode::Out)
            | (Mode::Rebuilding | Mode::InService, Mode::InService) => true,
        };
        if self.member_version + 1 != wish.version || !allowed {
            return Verdict::Stale;
        }
        let mut next = Record { member_version: wish.version, ..self.clone() };
        next.members[at].mode = wish.mode;
        Verdict::Apply(next)
    }
}

/// Tells one state of a stored record from the next; only its store knows how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(pub String);

/// Why a record cannot be read or changed. Either may work later.
#[derive(Debug, thiserror::Error)]
#[error("{doing} the record of the volume")]
pub struct RecordError {
    pub doing: &'static str,
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Where a record is kept. Calls may take long: they are made beside the loop.
pub trait RecordStore: Send + 'static {
    fn read(&mut self) -> Result<(Revision, Record), RecordError>;

    /// Replaces the record if it is still the one of that revision; says whether
    /// it was. Durable when it returns.
    fn swap(&mut self, seen: &Revision, record: &Record) -> Result<bool, RecordError>;

    /// Gives the volume to the next engine: raises the term.
    fn take_term(&mut self) -> Result<Record, RecordError> {
        self.change(Record::next_term)
    }

    /// Gives the volume to the next engine, for the frontend of a new attachment.
    fn attach(&mut self, attachment: Attachment) -> Result<Record, RecordError> {
        self.change(|record| Record { attachment: Some(attachment), ..record.next_term() })
    }

    /// Changes what is there, whoever else does so meanwhile.
    fn change(&mut self, how: impl Fn(&Record) -> Record) -> Result<Record, RecordError> {
        loop {
            let (seen, record) = self.read()?;
            let next = how(&record);
            if self.swap(&seen, &next)? {
                return Ok(next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(version: u64, modes: [Mode; 3]) -> Record {
        let members = ["a", "b", "c"].into_iter().zip(modes);
        let members =
            members.map(|(name, mode)| Member { replica: name.to_owned(), mode }).collect::<Vec<_>>();
        Record { term: 5, member_version: version, members, attachment: None, switching: false }
    }

    #[test]
    fn a_wish_is_judged_by_term_version_and_what_the_copy_was() {
        use Mode::{InService as Rw, Out as Err, Rebuilding as Wo};
        let apply = |modes| Verdict::Apply(record(8, modes));
        #[rustfmt::skip]
        let cases = [
            ("drop one",                [Rw, Rw, Rw],    5, 8, Err, apply([Err, Rw, Rw])),
            ("again after it was done", [Err, Rw, Rw],   5, 7, Err, Verdict::Done),
            ("the last one stays",      [Rw, Err, Wo],   5, 8, Err, Verdict::Stale),
            ("not without a rebuild",   [Err, Rw, Rw],   5, 8, Rw,  Verdict::Stale),
            ("begin a rebuild",         [Err, Rw, Rw],   5, 8, Wo,  apply([Wo, Rw, Rw])),
            ("rebuilt",                 [Wo, Rw, Rw],    5, 8, Rw,  apply([Rw, Rw, Rw])),
            ("rebuild failed",          [Wo, Rw, Err],   5, 8, Err, apply([Err, Rw, Err])),
            ("another change was first", [Wo, Rw, Rw],   5, 7, Rw,  Verdict::Stale),
            ("too far ahead",           [Wo, Rw, Rw],    5, 9, Rw,  Verdict::Stale),
            ("an older engine",         [Wo, Rw, Rw],    4, 8, Rw,  Verdict::Outbid { term: 5 }),
            ("an engine nobody named",  [Wo, Rw, Rw],    6, 8, Rw,  Verdict::Stale),
        ];
        for (name, modes, term, version, mode, expected) in cases {
            let wish = Wish { replica: "a".into(), mode, version };
            assert_eq!(record(7, modes).judge(term, &wish), expected, "{name}");
        }
        let stranger = Wish { replica: "d".into(), mode: Err, version: 8 };
        assert_eq!(record(7, [Rw; 3]).judge(5, &stranger), Verdict::Stale);
    }

    #[test]
    fn an_engine_goes_on_while_its_frontend_is_on_the_way_to_the_next() {
        let [ours, theirs] = [1, 2].map(|bits| Some(Attachment::from_bits(bits)));
        let outbid = Found::Outbid { term: 5 };
        #[rustfmt::skip]
        let cases = [
            // what the engine knows, then what the record says of its frontend
            ("nothing new",               5, 7, ours, ours,   false, Found::AsKnown),
            ("its own switch",            5, 7, ours, ours,   true,  Found::AsKnown),
            ("other members",             5, 6, ours, ours,   false, Found::Stale),
            ("the next one has it",       4, 7, ours, ours,   false, outbid),
            ("the next one is to have it", 4, 7, ours, ours,  true,  Found::Succession),
            ("whoever the members are",   4, 6, ours, ours,   true,  Found::Succession),
            ("attached elsewhere",        4, 7, ours, theirs, true,  outbid),
            ("attached since",            4, 7, None, theirs, true,  outbid),
        ];
        for (name, term, version, attachment, says, switching, expected) in cases {
            let seen = Record { attachment: says, switching, ..record(7, [Mode::InService; 3]) };
            assert_eq!(seen.found_by(Known { term, version, attachment }), expected, "{name}");
        }
    }

    #[test]
    fn members_come_and_go_but_the_last_in_service() {
        use Mode::{InService as Rw, Out as Err, Rebuilding as Wo};
        let seen = record(7, [Rw, Err, Wo]);
        let added = seen.with_member("d").unwrap().unwrap();
        assert_eq!((added.member_version, added.members[3].mode), (8, Err));
        assert_eq!(added.with_member("d"), Ok(None));
        assert_eq!(seen.without_member("d"), Ok(None));
        assert_eq!(seen.without_member("b").unwrap().unwrap().members.len(), 2);
        assert!(seen.without_member("a").is_err() && seen.with_member_out("a").is_err());
        assert_eq!(seen.with_member_out("b"), Ok(None));
        assert_eq!(seen.with_member_out("c"), Ok(None));
        let out = record(7, [Rw, Rw, Err]).with_member_out("b").unwrap().unwrap();
        assert_eq!((out.member_version, out.members[1].mode), (8, Err));
        assert!(seen.with_member_out("x").is_err());
        let full = (0..MOST).try_fold(seen, |seen, number| {
            seen.with_member(&format!("r-{number}")).map(|next| next.unwrap_or(seen))
        });
        assert!(full.is_err());
    }

    #[test]
    fn names_have_keys_of_their_own() {
        let keys: std::collections::BTreeSet<u64> =
            (0..1000).map(|number| Record::key(&format!("vol-1-r-{number}"))).collect();
        assert_eq!(keys.len(), 1000);
    }
}
