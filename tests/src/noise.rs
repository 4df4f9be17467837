//! Data that a test can tell from any other.

/// Bytes that do not repeat, the same for the same seed.
pub fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(size).collect()
}
