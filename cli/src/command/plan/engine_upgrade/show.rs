//! How the plan of an engine upgrade looks, to people and to programs.

use std::time::Duration;

use midflight_plan::engine_upgrade::{Forecast, LeftOut, Move, UnderWay, Wave};
use serde::Serialize;

use crate::output::{Answer, Paint, about, duration, size, table};

/// A plan as programs read it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    target: String,
    per_node_limit: usize,
    /// 0 is none.
    cluster_limit: usize,
    /// Why none of it begins now.
    hold: Option<Held>,
    expected: Expected,
    /// Volumes that run the target already.
    there: usize,
    waves: Vec<ShownWave>,
    under_way: Vec<Going>,
    left_out: Vec<Staying>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Held {
    reason: &'static str,
    message: String,
    way_out: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Expected {
    volumes: usize,
    seconds: u64,
    live_seconds: u64,
    detached_seconds: u64,
    /// Upgrades of this cluster that the figures come from; with none they are assumed.
    learnt_from: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownWave {
    wave: usize,
    starts_after_seconds: u64,
    volumes: Vec<Moving>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Moving {
    volume: String,
    node: String,
    way: &'static str,
    from: String,
    size_bytes: u64,
    expected_seconds: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Going {
    volume: String,
    node: String,
    from: String,
    to: String,
    by: Option<&'static str>,
    since: Option<jiff::Timestamp>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Staying {
    volume: String,
    node: String,
    image: String,
    reason: &'static str,
    message: String,
    way_out: &'static str,
}

impl Shown {
    pub(super) fn of(plan: &Forecast) -> Shown {
        Shown {
            target: plan.target.to_string(),
            per_node_limit: plan.policy.per_node,
            cluster_limit: plan.policy.cluster,
            hold: plan.hold.as_ref().map(|hold| Held {
                reason: hold.word(),
                message: hold.to_string(),
                way_out: hold.way_out(),
            }),
            expected: Expected {
                volumes: plan.moves(),
                seconds: plan.duration.as_secs(),
                live_seconds: plan.pace.live.as_secs(),
                detached_seconds: plan.pace.detached.as_secs(),
                learnt_from: plan.pace.learnt_from,
            },
            there: plan.there,
            waves: plan.waves.iter().enumerate().map(|(at, wave)| shown_wave(at + 1, wave)).collect(),
            under_way: plan.under_way.iter().map(going).collect(),
            left_out: plan.left_out.iter().map(staying).collect(),
        }
    }

    fn head(&self, paint: Paint) -> String {
        let all = match self.cluster_limit {
            0 => "any number in all".to_owned(),
            limit => format!("{limit} in all"),
        };
        let mut text = format!("to          {}\n", if self.target.is_empty() { "-" } else { &self.target });
        text += &format!("limit       {} of a node at once, {all}\n", self.per_node_limit);
        let pace = format!(
            "{} live, {} detached; {}",
            seconds(self.expected.live_seconds),
            seconds(self.expected.detached_seconds),
            match self.expected.learnt_from {
                0 => "assumed, as no upgrade was seen here".to_owned(),
                count => format!("learnt from {count} upgrades here"),
            },
        );
        text += &match self.expected.volumes {
            0 => "moves       no volume\n".to_owned(),
            count => format!(
                "moves       {}, wave by wave, in {} ({pace})\n",
                volumes(count),
                about(self.expected.seconds)
            ),
        };
        text += &format!("there       {}\n", volumes(self.there));
        if let Some(hold) = &self.hold {
            text += &format!("{}        {}\n", paint.bad("hold"), hold.message);
            text += &format!("            to begin: {}\n", hold.way_out);
        }
        text
    }
}

impl Answer for Shown {
    fn to_table(&self, paint: Paint) -> String {
        let mut text = self.head(paint);
        if !self.waves.is_empty() {
            let rows = self.waves.iter().flat_map(|wave| wave.volumes.iter().map(|one| row(wave, one)));
            text += "\n";
            text += &table(["WAVE", "STARTS", "VOLUME", "NODE", "WAY", "SIZE", "FROM"], rows);
        }
        if !self.under_way.is_empty() {
            text += &format!("\n{}\n", paint.bold("On their way"));
            let rows = self.under_way.iter().map(|one| {
                let since = one.since.map_or("-".to_owned(), |since| since.strftime("%FT%TZ").to_string());
                let by = one.by.unwrap_or("-").to_owned();
                [one.volume.clone(), one.node.clone(), one.from.clone(), one.to.clone(), by, since]
            });
            text += &table(["VOLUME", "NODE", "FROM", "TO", "BY", "SINCE"], rows);
        }
        if !self.left_out.is_empty() {
            text += &format!("\n{}\n", paint.bold("Left out"));
            let rows = self.left_out.iter().map(|one| {
                let node = if one.node.is_empty() { "-" } else { &one.node };
                [one.volume.clone(), node.to_owned(), one.message.clone(), one.way_out.to_owned()]
            });
            text += &table(["VOLUME", "NODE", "BECAUSE", "WHAT HELPS"], rows);
        }
        text
    }
}

fn row(wave: &ShownWave, one: &Moving) -> [String; 7] {
    [
        wave.wave.to_string(),
        seconds(wave.starts_after_seconds),
        one.volume.clone(),
        one.node.clone(),
        one.way.to_owned(),
        size(one.size_bytes),
        one.from.clone(),
    ]
}

fn shown_wave(number: usize, wave: &Wave) -> ShownWave {
    let moving = |one: &Move| Moving {
        volume: one.volume.to_string(),
        node: one.node.to_string(),
        way: one.way.as_str(),
        from: one.from.to_string(),
        size_bytes: one.size.bytes(),
        expected_seconds: one.takes.as_secs(),
    };
    let Wave { after, moves } = wave;
    ShownWave {
        wave: number,
        starts_after_seconds: Duration::as_secs(after),
        volumes: moves.iter().map(moving).collect(),
    }
}

fn going(one: &UnderWay) -> Going {
    Going {
        volume: one.volume.to_string(),
        node: one.node.to_string(),
        from: one.from.to_string(),
        to: one.to.to_string(),
        by: one.by.map(|by| by.as_str()),
        since: one.since,
    }
}

fn staying(one: &LeftOut) -> Staying {
    Staying {
        volume: one.volume.to_string(),
        node: one.node.to_string(),
        image: one.image.to_string(),
        reason: one.reason.word(),
        message: one.reason.to_string(),
        way_out: one.reason.way_out(),
    }
}

fn volumes(count: usize) -> String {
    if count == 1 { "1 volume".to_owned() } else { format!("{count} volumes") }
}

fn seconds(count: u64) -> String {
    duration(i64::try_from(count).unwrap_or(i64::MAX))
}
