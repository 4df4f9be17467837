//! Reads the parts of a call one after another.
//!
//! Invariant: a call that ends too early is refused with EINVAL, whatever it was.

use std::ffi::CStr;

use rustix::io::Errno;

use super::name::Name;

pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(raw: &'a [u8]) -> Fields<'a> {
        Fields(raw)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn skip(&mut self, length: usize) -> Result<(), Errno> {
        self.bytes(length).map(|_| ())
    }

    pub(super) fn u32(&mut self) -> Result<u32, Errno> {
        let raw = self.bytes(4)?.try_into().map_err(|_| Errno::INVAL)?;
        Ok(u32::from_ne_bytes(raw))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Errno> {
        let raw = self.bytes(8)?.try_into().map_err(|_| Errno::INVAL)?;
        Ok(u64::from_ne_bytes(raw))
    }

    /// Text that ends with a NUL.
    pub(super) fn text(&mut self) -> Result<&'a CStr, Errno> {
        let text = CStr::from_bytes_until_nul(self.0).map_err(|_| Errno::INVAL)?;
        self.0 = &self.0[text.to_bytes_with_nul().len()..];
        Ok(text)
    }

    pub(super) fn name(&mut self) -> Result<Name<'a>, Errno> {
        Name::new(self.text()?)
    }
}
