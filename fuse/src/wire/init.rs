//! What kernel and server agree on at the start.
//!
//! Invariant: nothing is agreed on that the kernel did not offer, and nothing that
//! keeps something in the kernel which another may change.

use super::{MOST_DATA, fields::Fields};
use crate::folder::Caching;
use rustix::io::Errno;

const MAJOR: u32 = 7;
const MINOR: u32 = 40;
/// What came after FUSE 7.22 is taken for granted; that is Linux 3.15.
const LEAST_MINOR: u32 = 23;

const ASYNC_READ: u64 = 1;
const BIG_WRITES: u64 = 1 << 5;
const AUTO_INVALIDATE: u64 = 1 << 12;
const READDIRPLUS: u64 = 1 << 13;
const READDIRPLUS_AUTO: u64 = 1 << 14;
const ASYNC_DIRECT: u64 = 1 << 15;
const PARALLEL_FOLDERS: u64 = 1 << 18;
const MAX_PAGES: u64 = 1 << 22;
const CACHE_SYMLINKS: u64 = 1 << 23;
const DROP_PRIVILEGES: u64 = 1 << 28;
const MORE_FLAGS: u64 = 1 << 30;
const HAS_RESEND: u64 = 1 << 39;

const ALWAYS: u64 = ASYNC_READ
    | BIG_WRITES
    | READDIRPLUS
    | READDIRPLUS_AUTO
    | ASYNC_DIRECT
    | PARALLEL_FOLDERS
    | MAX_PAGES
    | DROP_PRIVILEGES
    | MORE_FLAGS
    | HAS_RESEND;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    #[error("the kernel's first call is not the one that opens a session")]
    NotInit,
    #[error("the kernel speaks FUSE {major}.{minor}, at least {MAJOR}.{LEAST_MINOR} is needed")]
    TooOld { major: u32, minor: u32 },
}

/// The answer's body to the kernel's offer.
pub(crate) fn agree(offer: &[u8], caching: Caching) -> Result<[u8; 64], InitError> {
    let (major, minor, read_ahead, flags) = read(offer).map_err(|_| InitError::NotInit)?;
    if major != MAJOR || minor < LEAST_MINOR {
        return Err(InitError::TooOld { major, minor });
    }
    const MOST_AT_ONCE: u16 = 64;
    let wanted = match caching {
        Caching::Exclusive => ALWAYS | CACHE_SYMLINKS,
        Caching::Shared => ALWAYS | AUTO_INVALIDATE,
    };
    let agreed = wanted & flags;
    let mut body = [0; 64];
    let mut put = |at: usize, bytes: &[u8]| body[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAJOR.to_ne_bytes());
    put(4, &MINOR.min(minor).to_ne_bytes());
    put(8, &read_ahead.to_ne_bytes());
    put(12, &(agreed as u32).to_ne_bytes());
    put(16, &MOST_AT_ONCE.to_ne_bytes());
    put(18, &(MOST_AT_ONCE * 3 / 4).to_ne_bytes());
    put(20, &(MOST_DATA as u32).to_ne_bytes());
    put(24, &1u32.to_ne_bytes());
    put(28, &((MOST_DATA / 4096) as u16).to_ne_bytes());
    put(32, &((agreed >> 32) as u32).to_ne_bytes());
    Ok(body)
}

fn read(offer: &[u8]) -> Result<(u32, u32, u32, u64), Errno> {
    let mut offer = Fields::new(offer);
    let (major, minor, read_ahead, low) = (offer.u32()?, offer.u32()?, offer.u32()?, offer.u32()?);
    let high = if u64::from(low) & MORE_FLAGS != 0 { offer.u32()? } else { 0 };
    Ok((major, minor, read_ahead, u64::from(low) | u64::from(high) << 32))
}

#[cfg(test)]
mod tests {
    use midflight_handover::kernel::u32_at;

    use super::*;

    fn offer(major: u32, minor: u32, flags: u64) -> Vec<u8> {
        [major, minor, 131_072, flags as u32, (flags >> 32) as u32]
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect()
    }

    fn agreed(flags: u64, caching: Caching) -> u64 {
        let body = agree(&offer(7, 45, flags), caching).unwrap();
        u64::from(u32_at(&body, 12)) | u64::from(u32_at(&body, 32)) << 32
    }

    #[test]
    fn agrees_only_on_what_is_offered_and_true() {
        assert_eq!(agreed(0, Caching::Exclusive), 0);
        assert_eq!(agreed(u64::MAX, Caching::Exclusive), ALWAYS | CACHE_SYMLINKS);
        assert_eq!(agreed(u64::MAX, Caching::Shared), ALWAYS | AUTO_INVALIDATE);
    }

    #[test]
    fn refuses_a_kernel_that_is_too_old_and_what_is_no_offer() {
        assert_eq!(agree(&offer(7, 22, 0), Caching::Shared), Err(InitError::TooOld { major: 7, minor: 22 }));
        assert_eq!(agree(&offer(8, 1, 0), Caching::Shared), Err(InitError::TooOld { major: 8, minor: 1 }));
        assert_eq!(agree(&[7, 0, 0], Caching::Shared), Err(InitError::NotInit));
    }
}
