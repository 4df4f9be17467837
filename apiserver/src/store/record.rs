//! How an object lies on disk.
//!
//! ```text
//! key    group / plural / namespace / name      namespace is empty for cluster-scoped kinds
//! value  crc32 (4) | version (8) | JSON          little endian; the crc covers key, version and JSON
//! ```
//!
//! The one invariant: a record that decodes is the record that was encoded.

use std::sync::Arc;

use bytes::Bytes;

use super::body::Stored;
use super::key::{Key, Version};
use crate::kind::ResourceId;

const HEADER: usize = 12;

/// Why a record is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Damage {
    #[error("its key {key:?} has not four parts")]
    Key { key: String },

    #[error("it is shorter than its header")]
    Short,

    #[error("its checksum does not match")]
    Checksum,
}

pub(super) fn encode_key(key: &Key) -> String {
    let ResourceId { group, plural } = &key.resource;
    format!("{group}/{plural}/{}/{}", key.namespace.as_deref().unwrap_or_default(), key.name)
}

pub(super) fn encode_value(key: &str, stored: &Stored) -> Vec<u8> {
    let version = stored.version.get().to_le_bytes();
    let crc = checksum(key, &version, &stored.bytes);
    let mut value = Vec::with_capacity(HEADER + stored.bytes.len());
    value.extend_from_slice(&crc.to_le_bytes());
    value.extend_from_slice(&version);
    value.extend_from_slice(&stored.bytes);
    value
}

pub(super) fn decode(key: &str, value: &[u8]) -> Result<(Key, Stored), Damage> {
    let (crc, rest) = value.split_first_chunk::<4>().ok_or(Damage::Short)?;
    let (version, json) = rest.split_first_chunk::<8>().ok_or(Damage::Short)?;
    if u32::from_le_bytes(*crc) != checksum(key, version, json) {
        return Err(Damage::Checksum);
    }
    let stored =
        Stored { version: Version::new(u64::from_le_bytes(*version)), bytes: Bytes::copy_from_slice(json) };
    Ok((decode_key(key)?, stored))
}

fn decode_key(text: &str) -> Result<Key, Damage> {
    let parts: Vec<&str> = text.splitn(4, '/').collect();
    let [group, plural, namespace, name] = parts[..] else {
        return Err(Damage::Key { key: text.to_owned() });
    };
    let resource = ResourceId { group: group.into(), plural: plural.into() };
    let namespace = (!namespace.is_empty()).then(|| Arc::from(namespace));
    Ok(Key { resource, namespace, name: name.into() })
}

fn checksum(key: &str, version: &[u8; 8], json: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(key.as_bytes());
    crc.update(version);
    crc.update(json);
    crc.finalize()
}
