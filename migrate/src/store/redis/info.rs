//! What a Redis server says of itself, and when a write is safe on its disk.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::{Durability, Facts, StoreError};
use super::Redis;

/// Longest wait for a save or a sync of the server's log.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// With `appendfsync everysec`, a sync begins at most a second after the last.
const EVERY_SECOND: Duration = Duration::from_millis(1100);

type Info = HashMap<String, String>;

impl Redis {
    async fn info(&self) -> Result<Info, StoreError> {
        let text: String = self.ask("ask Redis for its state", &redis::cmd("INFO")).await?;
        let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(text.lines().filter_map(pair).collect())
    }

    /// Absent where the server does not let us ask.
    async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg(name);
        match self.ask::<Vec<String>>("ask Redis for its settings", &command).await {
            Ok(pair) => Ok(pair.into_iter().nth(1)),
            Err(StoreError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn refuse_cluster(&self) -> Result<(), StoreError> {
        let info = self.info().await?;
        if info.get("cluster_enabled").is_some_and(|enabled| enabled == "1") {
            return Err(StoreError::refused(
                "open Redis",
                &"it is a cluster; this tool works on single servers",
            ));
        }
        *self.incarnation.lock().await = info.get("run_id").cloned();
        Ok(())
    }

    async fn durability(&self, info: &Info) -> Result<Durability, StoreError> {
        if info.get("aof_enabled").is_none_or(|enabled| enabled != "1") {
            return Ok(Durability::NextSave);
        }
        Ok(match self.setting("appendfsync").await?.as_deref() {
            Some("always") => Durability::EachWrite,
            Some("no") => Durability::SomeTime,
            Some(_) | None => Durability::WithinASecond,
        })
    }

    pub(super) async fn look_at_server(&self) -> Result<Facts, StoreError> {
        let info = self.info().await?;
        let number = |name: &str| info.get(name).and_then(|text| text.parse::<u64>().ok());
        let quota = number("maxmemory").filter(|&most| most > 0);
        let mut alarms = Vec::new();
        if let Some(policy) = info.get("maxmemory_policy")
            && quota.is_some()
            && policy != "noeviction"
        {
            alarms.push(format!("maxmemory-policy {policy} throws rows away when memory is full"));
        }
        for (name, what) in [
            ("rdb_last_bgsave_status", "the last save failed"),
            ("aof_last_write_status", "the log cannot be written"),
        ] {
            if info.get(name).is_some_and(|status| status != "ok") {
                alarms.push(what.to_owned());
            }
        }
        let resident = number("used_memory_rss").unwrap_or(0);
        Ok(Facts {
            server: format!("redis {}", info.get("redis_version").map_or("", String::as_str)),
            database_bytes: number("used_memory"),
            quota_bytes: quota,
            quota_is_assumed: false,
            free_bytes: number("total_system_memory").map(|all| all.saturating_sub(resident)),
            durability: self.durability(&info).await?,
            alarms,
            untold: vec![],
        })
    }

    /// Waits for the server's log or, where it keeps none, for a save. A server that was started
    /// anew since the last flush may have lost what it had acknowledged: the caller must look.
    pub(super) async fn make_durable(&self) -> Result<(), StoreError> {
        let info = self.info().await?;
        self.same_incarnation(&info).await?;
        match self.durability(&info).await? {
            Durability::EachWrite => {}
            Durability::WithinASecond => self.await_log().await?,
            Durability::SomeTime => self.write_log_anew().await?,
            Durability::NextSave => self.save(&info).await?,
        }
        let info = self.info().await?;
        self.same_incarnation(&info).await
    }

    async fn same_incarnation(&self, info: &Info) -> Result<(), StoreError> {
        let now = info.get("run_id").cloned();
        let before = std::mem::replace(&mut *self.incarnation.lock().await, now.clone());
        if before == now {
            return Ok(());
        }
        Err(StoreError::lost(
            "flush Redis",
            "the server was started anew, and may have lost what it had acknowledged",
        ))
    }

    /// The server begins a sync a second after the last one began (older ones: in the next second of
    /// their clock), unless one is under way; then when that is done. It looks for that before it sends
    /// answers, so when two looks after that time find no sync under way, the one that covers our
    /// writes has ended.
    async fn await_log(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        // Looks in a row without a sync under way; none before the time at which ours must have begun.
        let mut quiet: Option<u32> = None;
        while quiet.is_none_or(|looks| looks < 2) {
            too_late(began)?;
            tokio::time::sleep(LOOK_EVERY).await;
            let info = self.info().await?;
            let is = |name: &str, wanted: &str| info.get(name).is_none_or(|value| value == wanted);
            if !is("aof_last_write_status", "ok") {
                return Err(StoreError::refused("flush Redis", &"it cannot write its log; look at its disk"));
            }
            let idle = is("aof_pending_bio_fsync", "0") && is("aof_buffer_length", "0");
            quiet = match quiet {
                Some(looks) => Some(if idle { looks + 1 } else { 0 }),
                None => (began.elapsed() > EVERY_SECOND).then_some(0),
            };
        }
        Ok(())
    }

    /// A log that is written anew is synced when it is complete, whatever the settings say.
    async fn write_log_anew(&self) -> Result<(), StoreError> {
        let doing = "have Redis write its log anew";
        let began = Instant::now();
        // One that is under way may have begun before our last write, so it does not count.
        while self.rewrite_is_under_way().await? {
            too_late(began)?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.ask::<String>(doing, &redis::cmd("BGREWRITEAOF")).await?;
        while self.rewrite_is_under_way().await? {
            too_late(began)?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        match self.info().await?.get("aof_last_bgrewrite_status") {
            Some(status) if status != "ok" => Err(StoreError::refused(doing, &"it failed; look at its disk")),
            Some(_) | None => Ok(()),
        }
    }

    async fn rewrite_is_under_way(&self) -> Result<bool, StoreError> {
        let info = self.info().await?;
        let is = |name: &str| info.get(name).is_some_and(|value| value == "1");
        Ok(is("aof_rewrite_in_progress") || is("aof_rewrite_scheduled"))
    }

    async fn save(&self, info: &Info) -> Result<(), StoreError> {
        // Servers before 7 do not count their saves, but say when the last one was.
        let saves = |info: &Info| {
            let found = info.get("rdb_saves").or_else(|| info.get("rdb_last_save_time"));
            found.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
        };
        // One that is under way may have begun before our last write, so it does not count.
        let running = info.get("rdb_bgsave_in_progress").is_some_and(|progress| progress == "1");
        let wanted = saves(info) + if running { 2 } else { 1 };
        let began = Instant::now();
        let mut asked = false;
        loop {
            let info = self.info().await?;
            if saves(&info) >= wanted {
                return Ok(());
            }
            if info.get("rdb_bgsave_in_progress").is_none_or(|progress| progress == "0") {
                // An earlier failure may have been mended since; that of the save we asked for counts.
                if asked && info.get("rdb_last_bgsave_status").is_some_and(|status| status != "ok") {
                    return Err(StoreError::refused("save Redis", &"its save failed; look at its disk"));
                }
                let mut command = redis::cmd("BGSAVE");
                command.arg("SCHEDULE");
                self.ask::<String>("save Redis", &command).await?;
                asked = true;
            }
            too_late(began)?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn too_late(began: Instant) -> Result<(), StoreError> {
    if began.elapsed() < PATIENCE {
        return Ok(());
    }
    Err(StoreError::lost("flush Redis", "the server did not finish in time"))
}
