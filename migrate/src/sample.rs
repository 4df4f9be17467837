//! Clouds to try migrations on: made up, but whole, and the same for the same seed.
//!
//! The objects are those of a Dragonflow database before the example
//! migrations (`examples/migrations/dragonflow`), written as its own tools do.
//!
//! The one invariant: every reference leads to an object that is there.

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Value, json};

use crate::record::{RowKey, Snapshot, Table};

/// Where the topic of a row is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topics {
    /// In the key, as Redis has it.
    InKeys,
    /// In the object alone, as etcd has it.
    InObjects,
}

/// A cloud with `ports` ports and what belongs to them.
pub fn cloud(ports: usize, seed: u64, topics: Topics) -> Snapshot {
    let mut maker = Maker { random: Random(seed), topics, database: Snapshot::default(), counters: vec![] };
    let tenants: Vec<String> = (0..ports / 200 + 1).map(|_| maker.random.id()).collect();
    let chassis = maker.chassis(ports / 100 + 1);
    let groups: Vec<(String, String)> = tenants.iter().map(|tenant| maker.group(tenant)).collect();
    let networks: Vec<Network> = (0..ports / 50 + 1).map(|n| maker.network(n, &tenants)).collect();
    // A network that nobody uses has no subnet, and then no such field either.
    maker.empty_network(&tenants[0]);
    let routers: Vec<(String, String)> =
        networks.iter().step_by(4).map(|first| maker.router(first)).collect();
    for n in 0..ports {
        let network = &networks[maker.random.below(networks.len())];
        let group = groups.iter().find(|(tenant, _)| *tenant == network.tenant);
        let port = maker.port(n, network, &chassis, group.map(|(_, group)| group.as_str()));
        if n.is_multiple_of(20) {
            let router = &routers[maker.random.below(routers.len())];
            maker.floating_ip(n, &network.tenant, &port, &router.1);
        }
        if n.is_multiple_of(10) {
            maker.switch_port(n, &port);
        }
    }
    maker.finish()
}

struct Network {
    tenant: String,
    id: String,
    number: usize,
    subnets: Vec<String>,
}

struct Maker {
    random: Random,
    topics: Topics,
    database: Snapshot,
    /// The last number given to an object of a table.
    counters: Vec<(&'static str, u64)>,
}

impl Maker {
    fn put(&mut self, table: &'static str, topic: &str, object: &Value) {
        let id = object["id"].as_str().expect("every object has an id");
        let topic = if self.topics == Topics::InKeys { topic } else { "" };
        let key = RowKey::new(topic, id);
        self.database.put(&Table::new(table), key, as_python_writes(object).into());
    }

    fn number(&mut self, table: &'static str) -> u64 {
        match self.counters.iter_mut().find(|(name, _)| *name == table) {
            Some((_, last)) => {
                *last += 1;
                *last
            }
            None => {
                self.counters.push((table, 1));
                1
            }
        }
    }

    fn chassis(&mut self, count: usize) -> Vec<String> {
        let names: Vec<String> = (1..=count).map(|n| format!("compute-{n}")).collect();
        for (n, name) in names.iter().enumerate() {
            let ip = format!("172.16.{}.{}", n / 250, n % 250 + 1);
            self.put("chassis", "", &json!({"id": name, "ip": ip, "tunnel_types": ["vxlan", "geneve"]}));
        }
        names
    }

    fn group(&mut self, tenant: &str) -> (String, String) {
        let id = self.random.id();
        let rules: Vec<Value> = ["ingress", "egress"]
            .iter()
            .map(|direction| {
                let prefix = if *direction == "ingress" { "10.0.0.0/8" } else { "0.0.0.0/0" };
                json!({"id": self.random.id(), "direction": direction, "ethertype": "IPv4",
                       "protocol": "tcp", "remote_ip_prefix": prefix})
            })
            .collect();
        let number = self.number("secgroup");
        let group = json!({"id": id, "topic": tenant, "name": "default", "version": 1,
                           "unique_key": number, "rules": rules});
        self.put("secgroup", tenant, &group);
        (tenant.to_owned(), id)
    }

    fn network(&mut self, number: usize, tenants: &[String]) -> Network {
        let tenant = tenants[self.random.below(tenants.len())].clone();
        let id = self.random.id();
        let subnets: Vec<Value> = (0..1 + self.random.below(2))
            .map(|which| {
                let block = format!("10.{}.{}", number / 128 % 256, number % 128 * 2 + which);
                json!({"id": self.random.id(), "topic": tenant, "name": format!("sub{number}-{which}"),
                       "cidr": format!("{block}.0/24"), "gateway_ip": format!("{block}.1"),
                       "dns_nameservers": ["192.0.2.53"], "dhcp_ip": format!("{block}.2"), "enable_dhcp": true})
            })
            .collect();
        let ids = subnets.iter().filter_map(|subnet| subnet["id"].as_str().map(str::to_owned)).collect();
        let key = self.number("lswitch");
        let network = json!({"id": id, "topic": tenant, "name": format!("net{number}"), "version": 1,
                             "unique_key": key, "mtu": 1450, "network_type": "vxlan",
                             "segmentation_id": number + 10, "is_external": false, "subnets": subnets});
        self.put("lswitch", &tenant, &network);
        Network { tenant, id, number, subnets: ids }
    }

    fn empty_network(&mut self, tenant: &str) {
        let (id, key) = (self.random.id(), self.number("lswitch"));
        let network = json!({"id": id, "topic": tenant, "name": "unused", "version": 1, "unique_key": key,
                             "mtu": 1450, "network_type": "vxlan", "segmentation_id": 7, "is_external": false});
        self.put("lswitch", tenant, &network);
    }

    fn router(&mut self, first: &Network) -> (String, String) {
        let id = self.random.id();
        let port = json!({"id": self.random.id(), "lswitch": first.id, "mac": self.random.mac(),
                          "network": format!("10.{}.{}.1/24", first.number / 128 % 256, first.number % 128 * 2)});
        let key = self.number("lrouter");
        let router = json!({"id": id, "topic": first.tenant, "name": format!("router{key}"), "version": 1,
                            "unique_key": key, "ports": [port]});
        self.put("lrouter", &first.tenant, &router);
        (first.tenant.clone(), id)
    }

    /// One port in ten is behind a VTEP, one in ten is bound nowhere, the others to a chassis.
    fn port(&mut self, n: usize, network: &Network, chassis: &[String], group: Option<&str>) -> String {
        let id = self.random.id();
        let key = self.number("lport");
        let ip = format!("10.{}.{}.{}", network.number / 128 % 256, network.number % 128 * 2, n % 250 + 3);
        let mut port = json!({
            "id": id, "topic": network.tenant, "name": format!("vm{n}"), "version": 3, "unique_key": key,
            "ips": [ip], "subnets": [network.subnets[0]], "macs": [self.random.mac()], "enabled": true,
            "lswitch": network.id, "security_groups": group, "port_security_enabled": true,
            "device_owner": "compute:nova", "device_id": self.random.id(), "remote_vtep": n % 10 == 1,
        });
        port["security_groups"] = group.into_iter().collect();
        port["chassis"] = match n % 10 {
            1 => json!(format!("192.0.2.{}", n % 250 + 1)),
            2 => json!(""),
            _ => json!(chassis[self.random.below(chassis.len())]),
        };
        if n.is_multiple_of(4) {
            port["extra_dhcp_options"] =
                json!([{"tag": 3, "value": "10.0.0.1"}, {"tag": 67, "value": "pxelinux.0"}]);
        }
        self.put("lport", &network.tenant, &port);
        id
    }

    fn floating_ip(&mut self, n: usize, tenant: &str, port: &str, router: &str) {
        let key = self.number("floatingip");
        let address = format!("198.51.{}.{}", n / 250 % 256, n % 250 + 1);
        let floating = json!({"id": self.random.id(), "topic": tenant, "name": "no_fip_name", "version": 1,
                              "unique_key": key, "floating_ip_address": address, "fixed_ip_address": "10.0.0.9",
                              "lport": port, "lrouter": router});
        self.put("floatingip", tenant, &floating);
    }

    fn switch_port(&mut self, n: usize, port: &str) {
        let tap = format!("tap{}", &port[..11]);
        let switch_port = json!({"id": format!("ovs-{port}"), "name": tap, "lport": port, "ofport": n % 4000 + 1, "peer_bridge": "br-int"});
        self.put("ovsport", "", &switch_port);
    }

    fn finish(mut self) -> Snapshot {
        for (table, last) in self.counters {
            let value = last.to_string().into();
            self.database.put(&Table::new("unique_key"), RowKey::untopical(table), value);
        }
        self.database
    }
}

/// Numbers that look random and are the same for the same seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }

    /// An id in the form of a UUID.
    fn id(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xfff,
            low >> 52,
            low & 0xffff_ffff_ffff
        )
    }

    fn mac(&mut self) -> String {
        let number = self.next();
        format!("fa:16:3e:{:02x}:{:02x}:{:02x}", number & 0xff, number >> 8 & 0xff, number >> 16 & 0xff)
    }
}

/// JSON as Python writes it: a space after each comma and colon.
fn as_python_writes(value: &Value) -> Vec<u8> {
    struct Spaced;
    impl Formatter for Spaced {
        fn begin_array_value<W: std::io::Write + ?Sized>(
            &mut self,
            out: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            if first { Ok(()) } else { out.write_all(b", ") }
        }

        fn begin_object_key<W: std::io::Write + ?Sized>(
            &mut self,
            out: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            self.begin_array_value(out, first)
        }

        fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, out: &mut W) -> std::io::Result<()> {
            out.write_all(b": ")
        }
    }
    let mut out = vec![];
    value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)).expect("plain data always encodes");
    out
}
