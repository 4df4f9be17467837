//! The row of a pod: readiness, one word for its state, restarts.
//!
//! Invariant: the state shown is that of the container most in need of attention.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Look;
use crate::present::age::{duration, since};

pub(super) fn cells(pod: &Look<'_>, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let restarts = match summary.last_restart {
        Some(time) if summary.restarts > 0 => {
            format!("{} ({} ago)", summary.restarts, duration(now.duration_since(time).as_secs()))
        }
        _ => summary.restarts.to_string(),
    };
    let ip = pod.items("status.podIPs").next().map(|ip| ip.text("ip")).filter(|ip| !ip.is_empty());
    vec![
        json!(pod.text("metadata.name")),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(summary.state),
        json!(restarts),
        json!(since(pod.at("metadata.creationTimestamp"), now)),
        json!(ip.unwrap_or("<none>")),
        json!(pod.text_or("spec.nodeName", "<none>")),
        json!(pod.text_or("status.nominatedNodeName", "<none>")),
        json!(readiness_gates(pod)),
    ]
}

/// What `status` of a finished pod's row says beyond its cells.
pub(crate) fn row_conditions(pod: &Value) -> Option<Value> {
    let phase = pod.get("status").and_then(|status| status.get("phase")).and_then(Value::as_str)?;
    let message = match phase {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": phase, "message": message}]))
}

fn readiness_gates(pod: &Look<'_>) -> String {
    let gates = pod.items("spec.readinessGates");
    let total = gates.len();
    if total == 0 {
        return "<none>".into();
    }
    let open = gates.filter(|gate| pod.condition(gate.text("conditionType")) == Some("True")).count();
    format!("{open}/{total}")
}

struct Summary {
    ready: usize,
    total: usize,
    state: String,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn of(pod: &Look<'_>) -> Summary {
        let gated = pod.items("status.conditions").any(|condition| {
            condition.text("type") == "PodScheduled" && condition.text("reason") == "SchedulingGated"
        });
        let state =
            if gated { "SchedulingGated" } else { pod.text_or("status.reason", pod.text("status.phase")) };
        let sidecars = pod.items("spec.initContainers").filter(is_sidecar).count();
        let mut summary = Summary {
            ready: 0,
            total: pod.size("spec.containers") + sidecars,
            state: state.to_owned(),
            restarts: 0,
            last_restart: None,
        };
        let initializing = summary.look_at_init_containers(pod);
        if !initializing || pod.condition("Initialized") == Some("True") {
            summary.forget_finished_init_containers(pod);
            summary.look_at_containers(pod);
        }
        let terminal = matches!(pod.text("status.phase"), "Succeeded" | "Failed");
        if pod.at("metadata.deletionTimestamp").is_some() {
            if pod.text("status.reason") == "NodeLost" {
                summary.state = "Unknown".into();
            } else if !terminal {
                summary.state = "Terminating".into();
            }
        }
        summary
    }

    /// Stops at the first init container that has not finished; true if there is one.
    fn look_at_init_containers(&mut self, pod: &Look<'_>) -> bool {
        let total = pod.size("spec.initContainers");
        for (index, container) in pod.items("status.initContainerStatuses").enumerate() {
            self.count_restarts(&container);
            let terminated = container.at("state.terminated").is_some();
            if terminated && container.number("state.terminated.exitCode") == 0 {
                continue;
            }
            if runs_beside(pod, &container) && container.flag("started") == Some(true) {
                self.ready += usize::from(container.flag("ready") == Some(true));
                continue;
            }
            let waiting = container.text("state.waiting.reason");
            self.state = if terminated {
                format!("Init:{}", end_of(&container))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{index}/{total}")
            };
            return true;
        }
        false
    }

    /// Once the pod is initialized only the restarts of sidecars still count.
    fn forget_finished_init_containers(&mut self, pod: &Look<'_>) {
        self.restarts = 0;
        self.last_restart = None;
        for container in pod.items("status.initContainerStatuses").filter(|one| runs_beside(pod, one)) {
            self.count_restarts(&container);
        }
    }

    fn look_at_containers(&mut self, pod: &Look<'_>) {
        let mut running = false;
        let mut failure = None;
        for container in pod.items("status.containerStatuses").rev() {
            self.count_restarts(&container);
            let waiting = container.text("state.waiting.reason");
            if !waiting.is_empty() {
                self.state = waiting.to_owned();
            } else if container.at("state.terminated").is_some() {
                self.state = end_of(&container);
                if container.number("state.terminated.exitCode") != 0 {
                    failure = Some(self.state.clone());
                }
            } else if container.flag("ready") == Some(true) && container.at("state.running").is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.state == "Completed" {
            if running && pod.condition("Ready") == Some("True") {
                self.state = "Running".into();
            } else if let Some(failure) = failure {
                self.state = failure;
            } else if running {
                self.state = "NotReady".into();
            }
        }
    }

    fn count_restarts(&mut self, container: &Look<'_>) {
        self.restarts += container.number("restartCount");
        let finished = container.text("lastState.terminated.finishedAt").parse().ok();
        self.last_restart = self.last_restart.max(finished);
    }
}

fn end_of(container: &Look<'_>) -> String {
    let reason = container.text("state.terminated.reason");
    let signal = container.number("state.terminated.signal");
    match reason {
        "" if signal != 0 => format!("Signal:{signal}"),
        "" => format!("ExitCode:{}", container.number("state.terminated.exitCode")),
        reason => reason.to_owned(),
    }
}

/// An init container that keeps running beside the others.
fn is_sidecar(container: &Look<'_>) -> bool {
    container.text("restartPolicy") == "Always"
}

fn runs_beside(pod: &Look<'_>, status: &Look<'_>) -> bool {
    pod.items("spec.initContainers").any(|one| one.text("name") == status.text("name") && is_sidecar(&one))
}
