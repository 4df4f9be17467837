//! Parcels over a real keeper: what is put is taken, with live descriptors.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    thread,
};

use midflight_handover::{Desk, Keeper, Stay};

fn keeper(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("keeper.sock");
    let keeper = Keeper::bind(&path).unwrap();
    thread::spawn(move || keeper.run());
    path
}

#[test]
fn a_conversation_goes_on_with_the_successor() {
    let folder = tempfile::tempdir().unwrap();
    let path = keeper(&folder);
    let (mut client, server) = UnixStream::pair().unwrap();
    Desk::connect(&path).unwrap().put("client", Stay::Once, b"half a word", &[server.as_fd()]).unwrap();
    drop(server);
    client.write_all(b"hello").unwrap();

    let parcels = Desk::connect(&path).unwrap().take().unwrap();
    let [parcel] = <[_; 1]>::try_from(parcels).unwrap();
    assert_eq!((parcel.key.as_str(), &parcel.state[..]), ("client", &b"half a word"[..]));
    let mut successor = UnixStream::from(parcel.descriptors.into_iter().next().unwrap());
    let mut heard = [0; 5];
    successor.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
    drop(successor);
    assert_eq!(client.read(&mut heard).unwrap(), 0, "the keeper holds on to nothing that was taken once");
}

#[test]
fn what_lasts_is_there_for_every_successor_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = keeper(&folder);
    let place = folder.path().join("listener.sock");
    let listener = UnixListener::bind(&place).unwrap();
    let mut desk = Desk::connect(&path).unwrap();
    desk.put("volume", Stay::Lasting, b"1", &[listener.as_fd()]).unwrap();
    desk.put("volume", Stay::Lasting, b"2", &[listener.as_fd()]).unwrap();
    drop(listener);
    UnixStream::connect(&place).expect("nobody serves, but the queue is open");
    for _ in 0..2 {
        let parcels = Desk::connect(&path).unwrap().take().unwrap();
        assert_eq!(parcels.len(), 1);
        assert_eq!((&parcels[0].state[..], parcels[0].descriptors.len()), (&b"2"[..], 1));
    }
    desk.remove("volume").unwrap();
    assert!(desk.take().unwrap().is_empty());
    assert!(UnixStream::connect(&place).is_err());
}

#[test]
fn nonsense_and_excess_are_refused_and_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = keeper(&folder);
    let mut desk = Desk::connect(&path).unwrap();
    let (one, _other) = UnixStream::pair().unwrap();
    assert!(desk.put("many", Stay::Once, b"", &[one.as_fd(); 20]).is_err());
    assert!(desk.put(&"k".repeat(10_000), Stay::Once, b"", &[]).is_err());
    desk.put("state only", Stay::Once, &vec![1; 1 << 20], &[]).unwrap();
    let parcels = Desk::connect(&path).unwrap().take().unwrap();
    assert_eq!((parcels[0].state.len(), parcels[0].descriptors.len()), (1 << 20, 0));
}
