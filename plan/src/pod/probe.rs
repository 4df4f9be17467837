//! Judges a container by what its probes have said.
//!
//! The one invariant: one answer that differs from those before changes the judgement only where the threshold is one.

/// How many answers in a row change the judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    pub success: u32,
    pub failure: u32,
}

/// The judgement and the answers since that speak against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    good: bool,
    against: u32,
}

impl Health {
    pub fn assumed(good: bool) -> Health {
        Health { good, against: 0 }
    }

    pub fn is_good(self) -> bool {
        self.good
    }

    /// After one more answer.
    pub fn after(self, passed: bool, thresholds: Thresholds) -> Health {
        if passed == self.good {
            return Health { against: 0, ..self };
        }
        let against = self.against + 1;
        let needed = if passed { thresholds.success } else { thresholds.failure };
        if against >= needed { Health::assumed(passed) } else { Health { against, ..self } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_in_a_row_change_the_judgement() {
        let thresholds = Thresholds { success: 2, failure: 3 };
        #[rustfmt::skip]
        let cases = [
            ("never asked",           false, "",       false),
            ("one success",           false, "+",      false),
            ("two successes",         false, "++",     true),
            ("broken row",            false, "+-+",    false),
            ("two failures",          true,  "--",     true),
            ("three failures",        true,  "---",    false),
            ("failures with a break", true,  "--+--",  true),
            ("lost and won again",    true,  "---++",  true),
        ];
        for (case, start, answers, expected) in cases {
            let health = answers
                .chars()
                .fold(Health::assumed(start), |health, answer| health.after(answer == '+', thresholds));
            assert_eq!(health.is_good(), expected, "{case}");
        }
    }
}
