//! Numbers with a name, a unit and a direction; medians over rounds; ratios between two sides.

use serde::Serialize;

use crate::output::table;

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Better {
    Higher,
    Lower,
}

/// One thing measured on our side and perhaps on the peer's.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    /// Median of the rounds.
    pub(super) ours: f64,
    pub(super) peer: Option<f64>,
    /// How many times better ours is: above 1 is better, whatever the direction.
    pub(super) ratio: Option<f64>,
}

impl Figure {
    pub(super) fn new(
        name: &str,
        unit: &'static str,
        better: Better,
        ours: &[f64],
        peer: &[f64],
    ) -> Option<Figure> {
        let (ours, peer) = (median(ours)?, median(peer));
        let ratio = peer.map(|peer| match better {
            Better::Higher => ours / peer,
            Better::Lower => peer / ours,
        });
        Some(Figure {
            name: name.to_owned(),
            unit,
            better,
            ours,
            peer,
            ratio: ratio.filter(|ratio| ratio.is_finite()),
        })
    }
}

impl Figure {
    /// Like `new`, where both sides were measured in the same rounds: the ratio is the median of
    /// those within a round.
    pub(super) fn paired(
        name: &str,
        unit: &'static str,
        better: Better,
        ours: &[f64],
        peer: &[f64],
    ) -> Option<Figure> {
        let ratios = ours.iter().zip(peer).map(|(ours, peer)| match better {
            Better::Higher => ours / peer,
            Better::Lower => peer / ours,
        });
        let ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
        let figure = Figure::new(name, unit, better, ours, peer)?;
        Some(Figure { ratio: median(&ratios), ..figure })
    }
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The value that the given share of all values does not exceed.
pub(super) fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let index = (share * last as f64).round() as usize;
    sorted.get(index.min(last)).copied()
}

pub(super) fn show(figures: &[Figure]) -> String {
    let rows = figures.iter().map(|figure| {
        [
            figure.name.clone(),
            figure.unit.to_owned(),
            number(figure.ours),
            figure.peer.map(number).unwrap_or_default(),
            figure.ratio.map(|ratio| format!("{ratio:.1}x")).unwrap_or_default(),
        ]
    });
    table(["MEASURE", "UNIT", "MIDFLIGHT", "PEER", "BETTER BY"], rows)
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 0.99), Some(99.0));
        assert_eq!(quantile(&values, 1.0), Some(100.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn above_one_is_better_in_both_directions() {
        let faster = Figure::new("create", "1/s", Better::Higher, &[100.0], &[20.0]).unwrap();
        let smaller = Figure::new("memory", "MiB", Better::Lower, &[10.0], &[50.0]).unwrap();
        assert_eq!((faster.ratio, smaller.ratio), (Some(5.0), Some(5.0)));
        let paired =
            Figure::paired("read", "1/s", Better::Higher, &[10.0, 40.0, 9.0], &[5.0, 10.0, 9.0]).unwrap();
        assert_eq!((paired.ours, paired.peer, paired.ratio), (10.0, Some(9.0), Some(2.0)));
        assert_eq!(Figure::new("alone", "ms", Better::Lower, &[1.0], &[]).unwrap().ratio, None);
    }
}
