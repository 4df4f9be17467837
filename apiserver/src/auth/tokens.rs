//! Bearer tokens: handed out once, kept as SHA-256 hashes in one file.
//!
//! The invariant: a token that was handed out is in the file, so it is still
//! good after a restart; the file never holds what would let anyone in.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Identity;

/// What can go wrong with the file of tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("read the tokens in {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not a list of tokens")]
    Corrupt { path: PathBuf, source: serde_json::Error },
    #[error("write the tokens to {path}")]
    Write { path: PathBuf, source: io::Error },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    sha256: String,
    #[serde(flatten)]
    identity: Identity,
}

/// All tokens that are good.
#[derive(Debug)]
pub(crate) struct Tokens {
    path: PathBuf,
    entries: ArcSwap<Vec<(Entry, Arc<Identity>)>>,
    writer: Mutex<()>,
}

impl Tokens {
    pub(crate) fn open(path: PathBuf) -> Result<Tokens, TokenError> {
        let entries: Vec<Entry> = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| TokenError::Corrupt { path: path.clone(), source })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(TokenError::Read { path, source }),
        };
        Ok(Tokens { path, entries: ArcSwap::from_pointee(with_shared(entries)), writer: Mutex::new(()) })
    }

    /// Makes a new token for the identity; older ones of the same user stay good.
    pub(crate) fn issue(&self, identity: Identity) -> Result<String, TokenError> {
        let secret = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let entry = Entry { sha256: hash(&secret), identity };
        self.change(|entries| entries.push(entry))?;
        Ok(secret)
    }

    /// Makes every token of the user worthless.
    pub(crate) fn revoke(&self, user: &str) -> Result<(), TokenError> {
        self.change(|entries| entries.retain(|entry| entry.identity.user != user))
    }

    /// The identity behind a token. Takes the same time whichever entry matches.
    pub(crate) fn identify(&self, secret: &str) -> Option<Arc<Identity>> {
        let hashed = hash(secret);
        let mut found = None;
        for (entry, identity) in self.entries.load().iter() {
            if bool::from(entry.sha256.as_bytes().ct_eq(hashed.as_bytes())) {
                found = Some(identity.clone());
            }
        }
        found
    }

    fn change(&self, edit: impl FnOnce(&mut Vec<Entry>)) -> Result<(), TokenError> {
        let _one_at_a_time = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries: Vec<Entry> = self.entries.load().iter().map(|(entry, _)| entry.clone()).collect();
        edit(&mut entries);
        let text = serde_json::to_vec_pretty(&entries).expect("entries are plain strings");
        replace_file(&self.path, &text)
            .map_err(|source| TokenError::Write { path: self.path.clone(), source })?;
        self.entries.store(Arc::new(with_shared(entries)));
        Ok(())
    }
}

fn with_shared(entries: Vec<Entry>) -> Vec<(Entry, Arc<Identity>)> {
    entries.into_iter().map(|entry| (entry.clone(), Arc::new(entry.identity))).collect()
}

fn hash(secret: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(secret.as_bytes()).iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a String takes everything");
        hex
    })
}

/// Writes a file that only its owner may read; after a crash the old or the new content is there.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    match path.parent() {
        Some(folder) => fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
