//! Attributes that have names.
//!
//! Invariant: what would change who may do what (access control lists) is refused,
//! because the kernel does not ask us whether it may.

use std::ffi::CStr;

use rustix::{
    fs::{
        XattrFlags, fgetxattr_query, getxattr, getxattr_query, listxattr, listxattr_query, removexattr,
        setxattr,
    },
    io::Errno,
};

use super::{Folder, nodes::Node};
use crate::wire::reply::Reply;

/// Longest value, and longest list of names, that the kernel knows.
const MOST: usize = 64 << 10;

/// Lists of who may do what; their names.
fn is_access_list(name: &CStr) -> bool {
    name.to_bytes().starts_with(b"system.posix_acl_")
}

impl Folder {
    pub(super) fn set_xattr(
        &self,
        node: &Node,
        name: &CStr,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<(), Errno> {
        if is_access_list(name) {
            return Err(Errno::OPNOTSUPP);
        }
        setxattr(Folder::path(node), name, value, flags)
    }

    pub(super) fn get_xattr(
        &self,
        node: &Node,
        name: &CStr,
        room: u32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        if is_access_list(name) {
            return Err(Errno::OPNOTSUPP);
        }
        // Before most writes the kernel asks how long a value is that is not there: the quickest answer counts.
        if room == 0 {
            let length = match node.data().as_ref() {
                Some(data) => fgetxattr_query(&data.descriptor, name)?,
                None => getxattr_query(Folder::path(node), name)?,
            };
            reply.needed(length);
            return Ok(());
        }
        tell(room, reply, |value| getxattr(Folder::path(node), name, value))
    }

    pub(super) fn list_xattrs(&self, node: &Node, room: u32, reply: &mut Reply) -> Result<(), Errno> {
        if room == 0 {
            reply.needed(listxattr_query(Folder::path(node))?);
            return Ok(());
        }
        tell(room, reply, |names| listxattr(Folder::path(node), names))
    }

    pub(super) fn remove_xattr(&self, node: &Node, name: &CStr) -> Result<(), Errno> {
        if is_access_list(name) {
            return Err(Errno::OPNOTSUPP);
        }
        removexattr(Folder::path(node), name)
    }
}

/// A value, as long as there is room for.
fn tell(
    room: u32,
    reply: &mut Reply,
    read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    reply.read((room as usize).min(MOST), read).map(|_| ())
}
