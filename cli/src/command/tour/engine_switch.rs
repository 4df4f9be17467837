//! Act: a volume with three replicas moves from one engine process to the next under load.

use midflight_block::tour::{Layout, switch_under_load};

use super::{program::Outcome, stage::Stage};

const SWITCHES: usize = 5;
const SIZE: u64 = 64 << 20;

pub(super) async fn play(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let layout = Layout {
        binary: stage.cluster.starter.program.clone(),
        folder: stage.cluster.room("volume"),
        volume: "tour".to_owned(),
        size: SIZE,
        replicas: 3,
    };
    let told = stage.cluster.block(move || switch_under_load(layout, SWITCHES)).await??;
    anyhow::ensure!(
        told.is_clean(),
        "the client saw {} errors: {:?}",
        told.client.errors,
        told.client.complaints
    );
    let pause = told.worst_pause();
    Ok(Outcome::Shown(vec![
        format!(
            "{SWITCHES} switches to new engine processes; the longest a client waited was {:.1} ms",
            ms(pause)
        ),
        format!(
            "{} writes and {} reads meanwhile, 0 errors, {} blocks read back and verified",
            told.client.writes, told.client.reads, told.client.verified_blocks
        ),
        "all three replicas hold the same bytes".to_owned(),
    ]))
}

fn ms(duration: std::time::Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
