//! Where the API listens, where this machine finds it, and what its certificate must name.
//!
//! The one invariant: it listens beyond loopback only where this very start was told to.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// Where to listen when this start does not say: where it was last, brought back to loopback.
pub(crate) fn usual(last: SocketAddr) -> SocketAddr {
    if last.ip().is_loopback() { last } else { loopback(last.port()) }
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Where processes of this machine find what listens on the address.
pub(crate) fn reachable(listening: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match listening.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    (ip, listening.port()).into()
}

/// The addresses by which clients may call what listens on the address.
pub(crate) fn names(listening: SocketAddr) -> io::Result<Vec<String>> {
    let ip = listening.ip();
    if !ip.is_unspecified() {
        return Ok(vec![ip.to_string()]);
    }
    let mut own = own_v4(&fs::read_to_string("/proc/net/fib_trie")?);
    if ip.is_ipv6() {
        own.extend(own_v6(&fs::read_to_string("/proc/net/if_inet6")?));
    }
    Ok(own.iter().map(IpAddr::to_string).collect())
}

/// The machine's own addresses in the kernel's routes: each is followed by a line that calls it local.
fn own_v4(routes: &str) -> BTreeSet<IpAddr> {
    let lines = routes.lines().map(str::trim);
    let pairs = lines.clone().zip(lines.skip(1)).filter(|(_, kind)| *kind == "/32 host LOCAL");
    pairs.filter_map(|(address, _)| address.strip_prefix("|-- ")?.parse().ok()).collect()
}

/// The machine's own addresses, each at the start of a line as 32 hexadecimal digits.
fn own_v6(interfaces: &str) -> BTreeSet<IpAddr> {
    let digits = interfaces.lines().filter_map(|line| line.split_whitespace().next());
    digits.filter_map(|digits| Some(Ipv6Addr::from(u128::from_str_radix(digits, 16).ok()?).into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_start_is_on_loopback_and_keeps_the_port() {
        let cases = [
            ("127.0.0.1:7443", "127.0.0.1:7443"),
            ("127.0.0.9:7443", "127.0.0.9:7443"),
            ("[::1]:7443", "[::1]:7443"),
            ("192.168.1.5:7443", "127.0.0.1:7443"),
            ("0.0.0.0:7443", "127.0.0.1:7443"),
            ("[::]:7443", "127.0.0.1:7443"),
        ];
        for (last, expected) in cases {
            assert_eq!(usual(last.parse().unwrap()).to_string(), expected, "{last}");
        }
    }

    #[test]
    fn every_address_is_reachable_from_this_machine() {
        let cases = [
            ("192.168.1.5:7443", "192.168.1.5:7443"),
            ("0.0.0.0:7443", "127.0.0.1:7443"),
            ("[::]:7443", "[::1]:7443"),
        ];
        for (listening, expected) in cases {
            assert_eq!(reachable(listening.parse().unwrap()).to_string(), expected, "{listening}");
        }
    }

    #[test]
    fn the_machines_own_addresses_are_read() {
        let routes = "Local:
     +-- 192.0.2.0/30 2 0 2
        |-- 192.0.2.0
           /24 link UNICAST
        |-- 192.0.2.2
           /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
";
        assert_eq!(own_v4(routes), BTreeSet::from(["192.0.2.2".parse::<IpAddr>().unwrap()]));
        let interfaces = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(own_v6(interfaces), BTreeSet::from(["::1".parse::<IpAddr>().unwrap()]));
    }

    #[test]
    fn a_certificate_for_every_address_names_those_of_this_machine() {
        assert_eq!(names("192.0.2.7:1".parse().unwrap()).unwrap(), ["192.0.2.7"]);
        let all = names("0.0.0.0:1".parse().unwrap()).unwrap();
        assert!(all.contains(&"127.0.0.1".to_owned()), "{all:?}");
    }
}
