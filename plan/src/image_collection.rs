//! Decides which images a node gives up when its disk fills.
//!
//! The one invariant: an image that something runs from, or that was just used, is never given up.

use jiff::{SignedDuration, Timestamp};

/// From this share of the disk on, images are given up …
const HIGH_PERCENT: u64 = 85;
/// … until this share is reached; kubelet's defaults.
const LOW_PERCENT: u64 = 80;
/// Whoever pulled an image has this long to run something from it.
const YOUNGEST: SignedDuration = SignedDuration::from_secs(120);

/// Everything that is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub now: Timestamp,
    pub disk_bytes: u64,
    pub free_bytes: u64,
    pub images: Vec<Image>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub digest: String,
    pub size_bytes: u64,
    /// Something runs from it.
    pub in_use: bool,
    pub last_used: Timestamp,
}

/// The digests of the images to give up, those that were not used for longest first.
pub fn decide(seen: &Observed) -> Vec<String> {
    let used = seen.disk_bytes.saturating_sub(seen.free_bytes);
    if seen.disk_bytes == 0 || used.saturating_mul(100) < seen.disk_bytes.saturating_mul(HIGH_PERCENT) {
        return Vec::new();
    }
    let mut excess = used.saturating_sub(seen.disk_bytes / 100 * LOW_PERCENT);
    let old = |image: &&Image| !image.in_use && seen.now.duration_since(image.last_used) >= YOUNGEST;
    let mut candidates: Vec<&Image> = seen.images.iter().filter(old).collect();
    candidates.sort_by_key(|image| (image.last_used, &image.digest));
    let mut given_up = Vec::new();
    for image in candidates {
        if excess == 0 {
            break;
        }
        excess = excess.saturating_sub(image.size_bytes);
        given_up.push(image.digest.clone());
    }
    given_up
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(digest: &str, size_bytes: u64, last_used: i64) -> Image {
        let last_used = Timestamp::from_second(last_used).unwrap();
        Image { digest: digest.into(), size_bytes, in_use: false, last_used }
    }

    #[test]
    fn the_longest_unused_go_first_and_no_more_than_needed() {
        let in_use = |image: Image| Image { in_use: true, ..image };
        #[rustfmt::skip]
        let cases = [
            ("room enough",  16, vec![image("a", 5, 0)],                                        vec![]),
            ("one is enough", 15, vec![image("new", 5, 500), image("old", 5, 100)],              vec!["old"]),
            ("two are needed", 12, vec![image("b", 5, 200), image("a", 5, 100), image("c", 5, 300)], vec!["a", "b"]),
            ("in use",       10, vec![in_use(image("a", 5, 0)), image("b", 5, 500)],             vec!["b"]),
            ("just used",    10, vec![image("a", 5, 900)],                                       vec![]),
            ("nothing left", 1,  vec![],                                                         vec![]),
        ];
        for (case, free_bytes, images, expected) in cases {
            let now = Timestamp::from_second(1000).unwrap();
            let seen = Observed { now, disk_bytes: 100, free_bytes, images };
            assert_eq!(decide(&seen), expected, "{case}");
        }
    }
}
