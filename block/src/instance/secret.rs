//! The secret that the callers of an instance manager share with it.
//!
//! Invariant: it is compared in constant time and never shown.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
    str::FromStr,
};

use subtle::ConstantTimeEq;

const SHORTEST: usize = 16;
const LONGEST: u64 = 4096;
const SCHEME: &str = "Bearer ";

#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Reads it from a file that nobody else can read.
    pub fn load(path: &Path) -> io::Result<Secret> {
        let refuse = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
        let file = File::open(path)?;
        let mode = file.metadata()?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(refuse(format!("others can read it (mode {mode:04o}); make it 0600")));
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text)?;
        text.parse().map_err(refuse)
    }

    /// The header that proves that a caller knows it.
    pub fn header(&self) -> String {
        format!("{SCHEME}{}", self.0)
    }

    /// Whether a caller's header proves that it knows the secret.
    pub fn admits(&self, header: Option<&[u8]>) -> bool {
        let Some(given) = header.and_then(|raw| raw.strip_prefix(SCHEME.as_bytes())) else { return false };
        given.ct_eq(self.0.as_bytes()).into()
    }
}

impl FromStr for Secret {
    type Err = String;

    fn from_str(text: &str) -> Result<Secret, String> {
        let text = text.trim();
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.len() < SHORTEST || !printable {
            return Err(format!("a secret is at least {SHORTEST} printable characters in one line"));
        }
        Ok(Secret(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_private_file_with_a_long_word_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        #[rustfmt::skip]
        let cases = [
            ("0123456789abcdef\n", 0o600, true),
            ("0123456789abcdef",   0o640, false),
            ("0123456789abcdef",   0o604, false),
            ("0123456789abcde",    0o600, false),
            ("0123456789 abcdef",  0o600, false),
            ("",                   0o600, false),
        ];
        for (text, mode, good) in cases {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Secret::load(&path).is_ok(), good, "{text:?} {mode:o}");
        }
    }

    #[test]
    fn only_the_whole_secret_admits() {
        let secret = Secret("0123456789abcdef".into());
        assert!(secret.admits(Some(secret.header().as_bytes())));
        for wrong in ["", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdefg", "0123456789abcdef"]
        {
            assert!(!secret.admits(Some(wrong.as_bytes())), "{wrong}");
        }
        assert!(!secret.admits(None));
    }
}
