//! `midflight bench prepull`: how long an instance manager takes to start on a node that has its image, beside one
//! that has to pull it first.
//!
//! Each round has an image of its own for each side, so that nothing is there from the round before.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client,
    api::{Api, DeleteParams, PostParams},
};
use midflight_agent::image::Layout;
use midflight_api::longhorn::{Image, ImageState, NAMESPACE};
use serde::Serialize;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{
    conditions::Conditions,
    figure::{Better, Figure, show},
    variants::Variants,
};
use crate::{
    cluster::{Interrupts, Temporary},
    failure::Failure,
    output::{Answer, Paint},
    process::Role,
    session::Session,
};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(2);
const POD: &str = "bench";

/// Measure the start of an instance manager with and without its image on the node
#[derive(Debug, Args)]
pub(crate) struct PrepullBench {
    /// How often each is repeated; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    #[serde(flatten)]
    conditions: Conditions,
    image_bytes: u64,
    /// Ours is with pre-pull, the peer without.
    figures: Vec<Figure>,
}

impl Answer for Measured {
    fn to_table(&self, _: Paint) -> String {
        let size = crate::output::size(self.image_bytes);
        format!(
            "{}\nan image of {size}; MIDFLIGHT is with pre-pull, PEER without\n\n{}",
            self.conditions,
            show(&self.figures)
        )
    }
}

impl PrepullBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let cluster = Temporary::build(session, 1)?;
        let measured = tokio::select! {
            measured = self.measure(&cluster) => measured,
            () = interrupts.next() => Err(Failure::error("interrupted", "start it again any time")),
        };
        cluster.clear().await.context("clean up after the measurement")?;
        session.answer(&measured?)
    }

    async fn measure(&self, cluster: &Temporary) -> anyhow::Result<Measured> {
        let conditions = Conditions::before();
        cluster.starter.start(&Role::Control).await?;
        cluster.starter.start(&Role::Node(1)).await?;
        let node = Node { client: cluster.client().await? };
        let variants = Variants {
            layout: Layout::at(cluster.folder().registry()),
            program: cluster.starter.program.clone(),
            copy: cluster.room("binary"),
            engine: None,
        };
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            let image = variants.publish(&format!("bench:without-{round}"))?;
            without.push(node.start(&image).await?);
            let image = variants.publish(&format!("bench:with-{round}"))?;
            node.pull(&image).await?;
            with.push(node.start(&image).await?);
            node.forget(&image).await?;
        }
        let figure = Figure::paired("start of an instance manager", "ms", Better::Lower, &with, &without);
        let figures = figure.into_iter().collect();
        Ok(Measured { conditions: conditions.after(), image_bytes: variants.bytes(), figures })
    }
}

struct Node {
    client: Client,
}

impl Node {
    fn images(&self) -> Api<Image> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Lets the controller pull it, and waits until it is there.
    async fn pull(&self, image: &str) -> anyhow::Result<()> {
        let object = json!({ "metadata": { "name": POD }, "spec": { "imageURL": image } });
        let object = serde_json::from_value(object).context("write down an Image")?;
        self.images().create(&PostParams::default(), &object).await.context("create an Image")?;
        until("the image is pulled", async || {
            let state = self.images().get(POD).await?.status.map(|status| status.state);
            Ok(state == Some(ImageState::Deployed))
        })
        .await
    }

    async fn forget(&self, image: &str) -> anyhow::Result<()> {
        let gone = self.images().delete(POD, &DeleteParams::default()).await;
        gone.map(drop).with_context(|| format!("delete the Image of {image}"))
    }

    /// From the moment that a pod is asked for until it is ready, in milliseconds. It is gone afterwards.
    async fn start(&self, image: &str) -> anyhow::Result<f64> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let pod = json!({
            "metadata": { "name": POD },
            "spec": {
                "nodeName": "node-1", "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "instance-manager", "image": image,
                    "args": ["instance-manager", "--folder=/tmp/manager", "--listen=$(POD_IP):0", "--records=/tmp/records"],
                    "env": [
                        { "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
                        { "name": "MIDFLIGHT_INSTANCE_SECRET", "value": "0123456789abcdef0123456789abcdef" },
                    ],
                }],
            },
        });
        let pod = serde_json::from_value(pod).context("write down a pod")?;
        let began = Instant::now();
        pods.create(&PostParams::default(), &pod).await.context("create a pod")?;
        until("the instance manager runs", async || Ok(is_ready(&pods.get(POD).await?))).await?;
        let took = began.elapsed();
        pods.delete(POD, &DeleteParams::default()).await.context("delete the pod")?;
        until("the pod is gone", async || Ok(pods.get_opt(POD).await?.is_none())).await?;
        Ok(took.as_secs_f64() * 1000.0)
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn until(what: &str, holds: impl AsyncFn() -> kube::Result<bool>) -> anyhow::Result<()> {
    let reached = async {
        while !holds().await? {
            sleep(LOOK_EVERY).await;
        }
        Ok::<(), kube::Error>(())
    };
    let reached = timeout(PATIENCE, reached).await;
    Ok(reached.with_context(|| format!("waited until {what}"))??)
}
