//! What was asked of each block and what was acknowledged.
//!
//! Invariant: a block's acknowledged number never passes its issued number.

use super::pattern::{self, BLOCK, BadBlock};

#[derive(Debug, Clone, Copy, Default)]
struct Line {
    issued: u64,
    acknowledged: u64,
    /// The last that made the block zeroes.
    cleared: u64,
}

/// What is wrong with a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("block {address} holds write {holds}, but {acknowledged} was acknowledged")]
    Lost { address: u64, holds: u64, acknowledged: u64 },
    #[error("block {address} holds write {holds}, but only {issued} were ever asked for")]
    Invented { address: u64, holds: u64, issued: u64 },
    #[error(transparent)]
    Bad(#[from] BadBlock),
}

#[derive(Debug)]
pub struct Ledger {
    lines: Vec<Line>,
}

impl Ledger {
    pub fn new(blocks: u64) -> Ledger {
        Ledger { lines: vec![Line::default(); blocks as usize] }
    }

    /// The volume is larger.
    pub fn grow(&mut self, blocks: u64) {
        self.lines.resize(blocks as usize, Line::default());
    }

    pub fn blocks(&self) -> u64 {
        self.lines.len() as u64
    }

    /// Begins a write; gives its number.
    pub fn issue(&mut self, address: u64) -> u64 {
        let line = &mut self.lines[address as usize];
        line.issued += 1;
        line.issued
    }

    /// Begins what makes the block zeroes; gives its number. Zeroes do not say which one made them: they
    /// count as the last.
    pub fn issue_clear(&mut self, address: u64) -> u64 {
        let sequence = self.issue(address);
        self.lines[address as usize].cleared = sequence;
        sequence
    }

    pub fn acknowledge(&mut self, address: u64, sequence: u64) {
        let line = &mut self.lines[address as usize];
        line.acknowledged = line.acknowledged.max(sequence);
    }

    /// After a loss of power only this much is certain.
    pub fn reduce(&mut self, address: u64, durable: u64) {
        let line = &mut self.lines[address as usize];
        line.acknowledged = line.acknowledged.min(durable);
    }

    pub fn acknowledged(&self, address: u64) -> u64 {
        self.lines[address as usize].acknowledged
    }

    /// The acknowledged number of every block.
    pub fn all_acknowledged(&self) -> Vec<u64> {
        self.lines.iter().map(|line| line.acknowledged).collect()
    }

    pub fn issued(&self, address: u64) -> u64 {
        self.lines[address as usize].issued
    }

    pub fn was_written(&self, address: u64) -> bool {
        self.issued(address) > 0
    }

    /// Judges a block that was read; `acknowledged` is what had been when the read began.
    pub fn judge(&self, address: u64, block: &[u8], acknowledged: u64) -> Result<u64, Wrong> {
        debug_assert_eq!(block.len(), BLOCK);
        let Line { issued, cleared, .. } = self.lines[address as usize];
        let holds = match pattern::read(block, address)? {
            0 => cleared,
            sequence => sequence,
        };
        if holds < acknowledged {
            return Err(Wrong::Lost { address, holds, acknowledged });
        }
        if holds > issued {
            return Err(Wrong::Invented { address, holds, issued });
        }
        Ok(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_than_acknowledged_is_lost_and_later_than_issued_is_invented() {
        let mut ledger = Ledger::new(2);
        for _ in 0..3 {
            ledger.issue(1);
        }
        ledger.acknowledge(1, 2);
        #[rustfmt::skip]
        let cases = [
            (1, Err(Wrong::Lost { address: 1, holds: 1, acknowledged: 2 })),
            (2, Ok(2)),
            (3, Ok(3)),
            (4, Err(Wrong::Invented { address: 1, holds: 4, issued: 3 })),
        ];
        for (sequence, expected) in cases {
            let mut block = [0; BLOCK];
            pattern::write(&mut block, 1, sequence);
            assert_eq!(ledger.judge(1, &block, ledger.acknowledged(1)), expected, "{sequence}");
        }
        let zeroes = [0; BLOCK];
        assert_eq!(ledger.judge(1, &zeroes, 2), Err(Wrong::Lost { address: 1, holds: 0, acknowledged: 2 }));
        assert_eq!(ledger.issue_clear(1), 4);
        assert_eq!(ledger.judge(1, &zeroes, 4), Ok(4));
        assert_eq!(ledger.issue(1), 5);
        assert_eq!(ledger.judge(1, &zeroes, 5), Err(Wrong::Lost { address: 1, holds: 4, acknowledged: 5 }));
    }
}
