//! One component of a path.
//!
//! Invariant: a `Name` leads nowhere but into the folder it is looked up in.

use std::ffi::CStr;

use rustix::io::Errno;

/// Longest name of a file.
pub(crate) const MOST_NAME: usize = 255;

/// The name of an entry of a folder; any bytes but `/` and NUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name<'a>(&'a CStr);

impl<'a> Name<'a> {
    pub(crate) fn new(raw: &'a CStr) -> Result<Name<'a>, Errno> {
        match raw.to_bytes() {
            [] => Err(Errno::NOENT),
            b"." | b".." => Err(Errno::INVAL),
            bytes if bytes.contains(&b'/') => Err(Errno::INVAL),
            bytes if bytes.len() > MOST_NAME => Err(Errno::NAMETOOLONG),
            _ => Ok(Name(raw)),
        }
    }

    pub(crate) fn as_c_str(self) -> &'a CStr {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn a_name_never_leaves_its_folder() {
        let longest = vec![b'n'; MOST_NAME];
        let longer = vec![b'n'; MOST_NAME + 1];
        #[rustfmt::skip]
        let cases: [(&[u8], Result<(), Errno>); 10] = [
            (b"file",         Ok(())),
            (b"...",          Ok(())),
            (b"\xff\xfe",     Ok(())),
            (b" ",            Ok(())),
            (&longest,        Ok(())),
            (&longer,         Err(Errno::NAMETOOLONG)),
            (b"",             Err(Errno::NOENT)),
            (b".",            Err(Errno::INVAL)),
            (b"..",           Err(Errno::INVAL)),
            (b"../etc",       Err(Errno::INVAL)),
        ];
        for (raw, expected) in cases {
            let text = CString::new(raw).unwrap();
            assert_eq!(Name::new(&text).map(|_| ()), expected, "{text:?}");
        }
    }
}
