//! The `format`s that Kubernetes checks. Any other name is ignored, as there.

use std::net::{IpAddr, Ipv6Addr};

use super::node::Types;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Format {
    /// As written in the schema, for messages.
    pub(crate) name: String,
    pub(crate) kind: FormatKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormatKind {
    Int32,
    Int64,
    Float,
    Double,
    DateTime,
    Date,
    Duration,
    Byte,
    Ipv4,
    Ipv6,
    Cidr,
    Mac,
    /// Any version, or the one given.
    Uuid(Option<u8>),
    Email,
    Hostname,
    Uri,
    HexColor,
    ObjectId,
    Ssn,
    ShortName,
    LongName,
    /// Known by name, anything goes.
    Unchecked,
}

impl Format {
    /// The format of that name if the server checks it on these types.
    pub(crate) fn for_type(name: &str, types: Types) -> Option<Format> {
        use FormatKind::*;
        let kind = if types == Types::INTEGER {
            match name {
                "int32" => Int32,
                "int64" => Int64,
                _ => return None,
            }
        } else if types == Types::NUMBER {
            match name {
                "float" => Float,
                "double" => Double,
                _ => return None,
            }
        } else if types == Types::STRING || types.is_any() {
            match name.replace('-', "").as_str() {
                "datetime" => DateTime,
                "date" => Date,
                "duration" => Duration,
                "byte" => Byte,
                "ipv4" => Ipv4,
                "ipv6" => Ipv6,
                "cidr" => Cidr,
                "mac" => Mac,
                "uuid" => Uuid(None),
                "uuid3" => Uuid(Some(3)),
                "uuid4" => Uuid(Some(4)),
                "uuid5" => Uuid(Some(5)),
                "email" => Email,
                "hostname" => Hostname,
                "uri" => Uri,
                "hexcolor" => HexColor,
                "bsonobjectid" => ObjectId,
                "ssn" => Ssn,
                "k8sshortname" => ShortName,
                "k8slongname" => LongName,
                "password" | "isbn" | "isbn10" | "isbn13" | "creditcard" | "rgbcolor" => Unchecked,
                _ => return None,
            }
        } else {
            return None;
        };
        Some(Format { name: name.to_owned(), kind })
    }
}

impl FormatKind {
    /// Whether a string has this format.
    pub(crate) fn accepts(self, text: &str) -> bool {
        match self {
            Self::DateTime => is_date_time(text),
            Self::Date => is_date(text),
            Self::Duration => is_duration(text),
            Self::Byte => is_base64(text),
            Self::Ipv4 => text.contains('.') && sloppy_ip(text).is_some(),
            Self::Ipv6 => text.contains(':') && sloppy_ip(text).is_some(),
            Self::Cidr => is_cidr(text),
            Self::Mac => is_mac(text),
            Self::Uuid(version) => is_uuid(text, version),
            Self::Email => is_email(text),
            Self::Hostname => is_hostname(text),
            Self::Uri => is_request_uri(text),
            Self::HexColor => {
                let digits = text.strip_prefix('#').unwrap_or(text);
                matches!(digits.len(), 3 | 6) && is_hex(digits)
            }
            Self::ObjectId => text.len() == 24 && is_hex(text),
            Self::Ssn => is_ssn(text),
            Self::ShortName => text.len() <= 63 && is_name_label(text),
            Self::LongName => text.len() <= 253 && text.split('.').all(is_name_label),
            Self::Unchecked | Self::Int32 | Self::Int64 | Self::Float | Self::Double => true,
        }
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn two_digits(text: &[u8]) -> Option<u32> {
    match text {
        [a @ b'0'..=b'9', b @ b'0'..=b'9'] => Some(u32::from(a - b'0') * 10 + u32::from(b - b'0')),
        _ => None,
    }
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return false;
    }
    let (Some(century), Some(rest), Some(month), Some(day)) = (
        two_digits(&bytes[0..2]),
        two_digits(&bytes[2..4]),
        two_digits(&bytes[5..7]),
        two_digits(&bytes[8..10]),
    ) else {
        return false;
    };
    let year = century * 100 + rest;
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

fn is_date_time(text: &str) -> bool {
    let Some(at) = text.find(['t', 'T']) else { return false };
    let (date, time) = (&text[..at], &text.as_bytes()[at + 1..]);
    if !is_date(date) || time.len() < 9 || time[2] != b':' || time[5] != b':' {
        return false;
    }
    let in_range = |range: std::ops::Range<usize>, max| two_digits(&time[range]).is_some_and(|v| v <= max);
    if !in_range(0..2, 23) || !in_range(3..5, 59) || !in_range(6..8, 59) {
        return false;
    }
    let mut rest = &time[8..];
    if rest.len() > 1 && rest[1].is_ascii_digit() && !matches!(rest[0], b'+' | b'-') {
        let digits = rest[1..].iter().take_while(|b| b.is_ascii_digit()).count();
        rest = &rest[1 + digits..];
    }
    match rest {
        [b'z' | b'Z'] => true,
        [b'+' | b'-', zone @ ..] if zone.len() == 5 && zone[2] == b':' => {
            two_digits(&zone[..2]).is_some() && two_digits(&zone[3..]).is_some()
        }
        _ => false,
    }
}

/// Go durations (`1h30m`), and anything with a number and a unit in it (`5 days`).
fn is_duration(text: &str) -> bool {
    is_go_duration(text) || has_number_with_unit(text)
}

fn is_go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let figures = &rest[..number];
        if figures.matches('.').count() > 1 || !figures.contains(|c: char| c.is_ascii_digit()) {
            return false;
        }
        rest = &rest[number..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        if !matches!(&rest[..unit], "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h") {
            return false;
        }
        rest = &rest[unit..];
    }
    true
}

fn has_number_with_unit(text: &str) -> bool {
    const WHOLE: [&str; 11] = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"];
    const BEGIN: [&str; 8] = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    text.split(|c: char| c.is_ascii_digit()).skip(1).any(|after| {
        let unit: String =
            after.trim_start().chars().take_while(|c| c.is_ascii_alphabetic() || *c == 'µ').collect();
        let unit = unit.to_lowercase();
        WHOLE.contains(&unit.as_str()) || BEGIN.iter().any(|begin| unit.starts_with(begin))
    })
}

fn is_base64(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.is_empty() || !bytes.len().is_multiple_of(4) {
        return false;
    }
    let body = text.trim_end_matches('=');
    bytes.len() - body.len() <= 2 && body.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

/// An address, with leading zeros allowed in IPv4 parts as older servers allowed them.
fn sloppy_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let parts: Vec<&str> = text.split('.').collect();
    let mut octets = [0u8; 4];
    if parts.len() != 4 {
        return None;
    }
    for (octet, part) in octets.iter_mut().zip(parts) {
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse::<u32>().ok().and_then(|v| u8::try_from(v).ok())?;
    }
    Some(IpAddr::from(octets))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let Some(address) = sloppy_ip(address) else { return false };
    let max = if address.is_ipv4() { 32 } else { 128 };
    !bits.is_empty()
        && bits.bytes().all(|b| b.is_ascii_digit())
        && bits.parse::<u32>().is_ok_and(|bits| bits <= max)
}

fn is_mac(text: &str) -> bool {
    let groups = |separator: char, width: usize, counts: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len()) && parts.iter().all(|part| part.len() == width && is_hex(part))
    };
    groups(':', 2, &[6, 8, 20]) || groups('-', 2, &[6, 8, 20]) || groups('.', 4, &[3, 4, 10])
}

fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let mut shape = text.as_bytes();
    for width in [8, 4, 4, 4, 12] {
        if shape.first() == Some(&b'-') && width != 8 {
            shape = &shape[1..];
        }
        if shape.len() < width || !shape[..width].iter().all(u8::is_ascii_hexdigit) {
            return false;
        }
        shape = &shape[width..];
    }
    if !shape.is_empty() {
        return false;
    }
    match version {
        None => true,
        Some(version) => {
            let digits = digits.as_bytes();
            digits[12] == b'0' + version
                && (version == 3 || matches!(digits[16], b'8' | b'9' | b'a' | b'b' | b'A' | b'B'))
        }
    }
}

/// `user@host`, or `Name <user@host>`.
fn is_email(text: &str) -> bool {
    let text = text.trim();
    let address = match (text.find('<'), text.strip_suffix('>')) {
        (Some(open), Some(inner)) => &inner[open + 1..],
        (None, None) => text,
        _ => return false,
    };
    let Some((user, host)) = address.rsplit_once('@') else { return false };
    let is_atom = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c))
    };
    let quoted = user.len() > 2 && user.starts_with('"') && user.ends_with('"');
    let literal = host.starts_with('[') && host.ends_with(']');
    (quoted || user.split('.').all(is_atom)) && (literal || host.split('.').all(is_atom))
}

/// As the real server has it: a name without dots may have one dash, after its
/// first character; with dots, the last part is letters.
fn is_hostname(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c.is_alphabetic() || is_symbol(c);
    let single = |part: &str| {
        let mut chars = part.chars();
        let first = chars.next().is_some_and(fits);
        let rest = chars.as_str();
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        first && rest.chars().count() <= 62 && rest.chars().all(fits)
    };
    let label = |part: &str| {
        part.len() <= 63
            && part.chars().all(|c| fits(c) || c == '-')
            && part.chars().next().is_some_and(fits)
            && part.chars().next_back().is_some_and(fits)
    };
    let top = |part: &str| (2..=63).contains(&part.chars().count()) && part.chars().all(char::is_alphabetic);
    text.len() <= 255
        && match text.rsplit_once('.') {
            None => single(text) && text.len() <= 63,
            Some((rest, last)) => rest.split('.').all(label) && top(last),
        }
}

fn is_symbol(c: char) -> bool {
    "$+<=>^`|~".contains(c)
        || (!c.is_ascii() && !c.is_alphanumeric() && !c.is_whitespace() && !c.is_control())
}

/// What a request line may hold: an absolute URL or an absolute path.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f) || has_bad_escape(text) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let scheme_ok = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    let authority = rest.strip_prefix("//").map(|rest| rest.split(['/', '?']).next().unwrap_or(""));
    scheme_ok && authority.is_none_or(|host| !host.contains(' '))
}

fn has_bad_escape(text: &str) -> bool {
    text.match_indices('%').any(|(at, _)| {
        let after = text.as_bytes().get(at + 1..at + 3);
        !after.is_some_and(|pair| pair.iter().all(u8::is_ascii_hexdigit))
    })
}

fn is_ssn(text: &str) -> bool {
    let digits: Vec<&str> = text.split(['-', ' ']).collect();
    let joined: String = digits.concat();
    joined.len() == 9
        && joined.bytes().all(|b| b.is_ascii_digit())
        && (digits.len() == 1 || (digits.len() == 3 && digits[0].len() == 3 && digits[1].len() == 2))
}

fn is_name_label(part: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    !bytes.is_empty()
        && inner(bytes[0])
        && inner(bytes[bytes.len() - 1])
        && bytes.iter().all(|b| inner(*b) || *b == b'-')
}
