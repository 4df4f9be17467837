//! A block that carries its address, a sequence number and a checksum.
//!
//! Invariant: `read` gives back what `write` was given, or says why not.

pub const BLOCK: usize = 4096;
const MAGIC: u64 = 0x6d69_6466_6c69_6768;

/// Fills a block for its address and sequence number (from 1).
pub fn write(block: &mut [u8; BLOCK], address: u64, sequence: u64) {
    let mut state = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sequence;
    for word in block.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&state.to_le_bytes());
    }
    block[0..8].copy_from_slice(&MAGIC.to_le_bytes());
    block[8..16].copy_from_slice(&address.to_le_bytes());
    block[16..24].copy_from_slice(&sequence.to_le_bytes());
    let check = crc32fast::hash(&block[..BLOCK - 4]);
    block[BLOCK - 4..].copy_from_slice(&check.to_le_bytes());
}

/// What a block turned out not to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadBlock {
    #[error("block {address} is neither empty nor whole")]
    Torn { address: u64 },
    #[error("block {address} holds what belongs to {holds}")]
    Misplaced { address: u64, holds: u64 },
}

/// The sequence number in a block; 0 for a block of zeroes.
pub fn read(block: &[u8], address: u64) -> Result<u64, BadBlock> {
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    if block.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let (body, check) = block.split_at(BLOCK - 4);
    if word(0) != MAGIC || crc32fast::hash(body).to_le_bytes() != check {
        return Err(BadBlock::Torn { address });
    }
    if word(8) != address {
        return Err(BadBlock::Misplaced { address, holds: word(8) });
    }
    Ok(word(16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_knows_what_it_is() {
        let mut block = [0; BLOCK];
        assert_eq!(read(&block, 7), Ok(0));
        write(&mut block, 7, 42);
        assert_eq!(read(&block, 7), Ok(42));
        assert_eq!(read(&block, 8), Err(BadBlock::Misplaced { address: 8, holds: 7 }));
        block[100] ^= 1;
        assert_eq!(read(&block, 7), Err(BadBlock::Torn { address: 7 }));
    }
}
