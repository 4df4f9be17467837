//! What content is called: the SHA-256 of its bytes.

use std::{fmt, io::Read, str::FromStr};

use oci_spec::image::Sha256Digest;
use sha2::{Digest as _, Sha256};

const ALGORITHM: &str = "sha256:";

/// `sha256:` and 64 digits; names a file without any danger.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a digest: sha256: and 64 hexadecimal digits")]
pub struct DigestError(String);

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        Digest::from_hash(Sha256::new_with_prefix(bytes))
    }

    pub fn hex(&self) -> &str {
        &self.0[ALGORITHM.len()..]
    }

    /// What people are shown.
    pub fn short(&self) -> &str {
        &self.hex()[..12]
    }

    /// The same, as the specification's own type.
    pub(super) fn to_spec(&self) -> Sha256Digest {
        self.hex().parse().expect("it has 64 digits")
    }

    fn from_hash(hash: Sha256) -> Digest {
        let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Digest(format!("{ALGORITHM}{digits}"))
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Digest, DigestError> {
        let is_hex =
            |hex: &str| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match text.strip_prefix(ALGORITHM) {
            Some(hex) if is_hex(hex) => Ok(Digest(text.to_owned())),
            _ => Err(DigestError(text.to_owned())),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads on and remembers what went by.
pub(super) struct Digesting<R> {
    content: R,
    hash: Sha256,
    size: u64,
}

impl<R: Read> Digesting<R> {
    pub(super) fn new(content: R) -> Digesting<R> {
        Digesting { content, hash: Sha256::new(), size: 0 }
    }

    /// Name and size of all that was read.
    pub(super) fn finish(self) -> (Digest, u64) {
        (Digest::from_hash(self.hash), self.size)
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.size += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn bytes_have_one_name_however_they_are_read() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        let mut reading = Digesting::new(&b"content"[..]);
        std::io::copy(&mut reading, &mut std::io::sink()).unwrap();
        assert_eq!(reading.finish(), (Digest::of(b"content"), 7));
    }

    #[test]
    fn only_a_digest_becomes_the_name_of_a_file() {
        assert!(EMPTY.parse::<Digest>().is_ok());
        for text in
            ["", "sha256:", "sha512:00", "sha256:../../etc/passwd", &EMPTY.to_uppercase(), &EMPTY[..70]]
        {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
