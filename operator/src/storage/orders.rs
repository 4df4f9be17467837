//! Orders to instance managers, over gRPC.
//!
//! The invariant: every order carries the cluster's secret and has a deadline.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use midflight_api::longhorn::NAMESPACE;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use uuid::Uuid;

use crate::controller::TurnError;
use crate::write::{WriteError, Writer};
use proto::instance_manager_client::InstanceManagerClient;

/// Messages of `block/proto/instance.proto`.
#[allow(clippy::all, unreachable_pub, unused_qualifications)]
pub(crate) mod proto {
    tonic::include_proto!("midflight.instance.v1");
}

/// The Secret with the word that instance managers and whoever gives them orders share, and its key.
pub(crate) const SECRET: (&str, &str) = ("midflight-instance-managers", "secret");

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// An instance is up, or has failed, within fifteen seconds.
const DONE_WITHIN: Duration = Duration::from_secs(40);

/// Adds the proof that the caller knows the secret.
#[derive(Clone)]
pub(crate) struct Proof(MetadataValue<Ascii>);

impl Interceptor for Proof {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

pub(crate) type Manager = InstanceManagerClient<InterceptedService<Channel, Proof>>;

/// Why no orders can be given at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrdersError {
    #[error("read the secret of the instance managers")]
    Read(#[source] Box<kube::Error>),
    #[error("make the secret of the instance managers")]
    Make(#[source] Box<WriteError>),
    #[error("the Secret {} has no printable value of {}", SECRET.0, SECRET.1)]
    Unusable,
}

/// Speaks to all instance managers of a cluster.
pub(crate) struct Orders {
    proof: Proof,
    channels: Mutex<HashMap<String, Channel>>,
}

impl Orders {
    /// Takes the cluster's secret, or makes it.
    pub(crate) async fn open(writer: &Writer) -> Result<Orders, OrdersError> {
        let secrets: Api<Secret> = Api::namespaced(writer.client().clone(), NAMESPACE);
        let read =
            async || secrets.get_opt(SECRET.0).await.map_err(|error| OrdersError::Read(Box::new(error)));
        let secret = match read().await? {
            Some(secret) => secret,
            None => {
                let word = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
                let secret = Secret {
                    metadata: ObjectMeta {
                        name: Some(SECRET.0.into()),
                        namespace: Some(NAMESPACE.into()),
                        ..ObjectMeta::default()
                    },
                    data: Some([(SECRET.1.to_owned(), ByteString(word.into_bytes()))].into()),
                    ..Secret::default()
                };
                let made =
                    writer.send("create", SECRET.0, secrets.create(&PostParams::default(), &secret)).await;
                match made {
                    Err(error) if !error.is_already_there() => {
                        return Err(OrdersError::Make(Box::new(error)));
                    }
                    // Somebody else's may have come first.
                    _ => read().await?.ok_or(OrdersError::Unusable)?,
                }
            }
        };
        let word = secret.data.and_then(|mut data| data.remove(SECRET.1)).ok_or(OrdersError::Unusable)?;
        let word = String::from_utf8(word.0).map_err(|_| OrdersError::Unusable)?;
        let proof = format!("Bearer {}", word.trim()).parse().map_err(|_| OrdersError::Unusable)?;
        Ok(Orders { proof: Proof(proof), channels: Mutex::default() })
    }

    /// The instance manager at an address; it is connected to by the first order.
    pub(crate) fn to(&self, address: &str) -> Result<Manager, TurnError> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match channels.get(address) {
            Some(channel) => channel.clone(),
            None => {
                let endpoint = Endpoint::from_shared(format!("http://{address}"));
                let endpoint =
                    endpoint.map_err(failed(|| format!("speak to an instance manager at {address}")))?;
                let channel = endpoint.connect_timeout(CONNECT_WITHIN).timeout(DONE_WITHIN).connect_lazy();
                channels.insert(address.to_owned(), channel.clone());
                channel
            }
        };
        Ok(InstanceManagerClient::with_interceptor(channel, self.proof.clone()))
    }
}

/// A failure of what was being done.
pub(crate) fn failed<E>(doing: impl FnOnce() -> String) -> impl FnOnce(E) -> TurnError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |source| TurnError::Failed { doing: doing(), source: Box::new(source) }
}
