//! Numbers that a seed gives again.

use std::time::Duration;

/// What this run was asked to do, or something new each time. Printed, so that it can be asked again.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("MIDFLIGHT_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_secs());
    println!("MIDFLIGHT_SEED={seed}");
    seed
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    /// Another row of numbers for each `what`.
    pub(crate) fn of(seed: u64, what: &str) -> Random {
        Random(
            what.bytes().fold(seed, |mixed, byte| (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)),
        )
    }

    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }

    /// A moment in something that takes `whole`, or shortly after it.
    pub(crate) fn moment(&mut self, whole: Duration) -> Duration {
        whole.mul_f64(self.below(1100) as f64 / 1000.0)
    }
}
